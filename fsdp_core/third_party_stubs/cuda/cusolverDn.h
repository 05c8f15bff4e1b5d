#pragma once
// LibTorch's CUDA headers name these handles and call nothing: enough to compile without the toolkit's math libraries.
typedef struct cusolverDnContext* cusolverDnHandle_t;
