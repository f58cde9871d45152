#pragma once
// Stands in for NVIDIA's header of this name: matrix products in f32 and f64, column-major as there, on emulated device memory. They check what
// cuBLAS checks, and beyond it that every operand lies inside its memory and was written.

#include "cuda_runtime.h"

enum cublasStatus_t {
  CUBLAS_STATUS_SUCCESS = 0,
  CUBLAS_STATUS_NOT_INITIALIZED = 1,
  CUBLAS_STATUS_INVALID_VALUE = 7,
  CUBLAS_STATUS_EXECUTION_FAILED = 13
};
enum cublasOperation_t { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1 };
enum cublasMath_t { CUBLAS_DEFAULT_MATH = 0, CUBLAS_PEDANTIC_MATH = 2, CUBLAS_TF32_TENSOR_OP_MATH = 3 };
using cublasHandle_t = struct cublasContext*;

const char* cublasGetStatusString(cublasStatus_t status);
cublasStatus_t cublasCreate(cublasHandle_t* handle);
cublasStatus_t cublasDestroy(cublasHandle_t handle);
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream);
/// The memory must be on the device and 256-byte aligned; a later cublasSetStream takes it away again.
cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void* workspace, size_t bytes);
/// CUBLAS_TF32_TENSOR_OP_MATH: products in f32 round their factors as tensor cores do.
cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode);

/// C = alpha op(A) op(B) + beta C; C is not read when beta is 0. alpha and beta are on the host.
cublasStatus_t cublasSgemm(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k, const float* alpha,
                           const float* a, int lda, const float* b, int ldb, const float* beta, float* c, int ldc);
cublasStatus_t cublasDgemm(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k, const double* alpha,
                           const double* a, int lda, const double* b, int ldb, const double* beta, double* c, int ldc);
cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k,
                                         const float* alpha, const float* a, int lda, long long stride_a, const float* b, int ldb, long long stride_b,
                                         const float* beta, float* c, int ldc, long long stride_c, int batch);
cublasStatus_t cublasDgemmStridedBatched(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k,
                                         const double* alpha, const double* a, int lda, long long stride_a, const double* b, int ldb,
                                         long long stride_b, const double* beta, double* c, int ldc, long long stride_c, int batch);

// The same with sizes of 64 bits.
cublasStatus_t cublasSgemm_64(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int64_t m, int64_t n, int64_t k,
                              const float* alpha, const float* a, int64_t lda, const float* b, int64_t ldb, const float* beta, float* c, int64_t ldc);
cublasStatus_t cublasDgemm_64(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int64_t m, int64_t n, int64_t k,
                              const double* alpha, const double* a, int64_t lda, const double* b, int64_t ldb, const double* beta, double* c,
                              int64_t ldc);
cublasStatus_t cublasSgemmStridedBatched_64(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int64_t m, int64_t n, int64_t k,
                                            const float* alpha, const float* a, int64_t lda, long long stride_a, const float* b, int64_t ldb,
                                            long long stride_b, const float* beta, float* c, int64_t ldc, long long stride_c, int64_t batch);
cublasStatus_t cublasDgemmStridedBatched_64(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int64_t m, int64_t n, int64_t k,
                                            const double* alpha, const double* a, int64_t lda, long long stride_a, const double* b, int64_t ldb,
                                            long long stride_b, const double* beta, double* c, int64_t ldc, long long stride_c, int64_t batch);
