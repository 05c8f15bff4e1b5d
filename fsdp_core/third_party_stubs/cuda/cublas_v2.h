#pragma once
// LibTorch's CUDA headers name these handles and call nothing: enough to compile without the toolkit's math libraries.
typedef struct cublasContext* cublasHandle_t;
typedef enum { CUBLAS_STATUS_SUCCESS = 0 } cublasStatus_t;
