#pragma once
// LibTorch's CUDA headers name these handles and call nothing: enough to compile without the toolkit's math libraries.
typedef struct cusparseContext* cusparseHandle_t;
typedef int cusparseStatus_t;
