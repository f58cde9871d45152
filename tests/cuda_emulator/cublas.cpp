#include <algorithm>

#include "cuda_emulator/cublas_v2.h"
#include "cuda_emulator/heap.h"

struct cublasContext {};

namespace {

using cuda_emulator::Memory;

// A column-major matrix [rows, columns] in device memory; the host's view of it after its columns were checked.
template <class T>
T* columns_of(const T* matrix, int rows, int columns, int leading, bool is_read, const char* name) {
  if (rows == 0 || columns == 0) return nullptr;
  const size_t column = static_cast<size_t>(rows) * sizeof(T), step = static_cast<size_t>(leading) * sizeof(T);
  Memory& memory = cuda_emulator::memory_at(matrix, step * static_cast<size_t>(columns - 1) + column, name);
  const size_t offset = reinterpret_cast<uintptr_t>(matrix) - memory.address();
  if (is_read)
    for (size_t j = 0; j < static_cast<size_t>(columns); ++j) memory.host_read(offset + j * step, column, name);
  return reinterpret_cast<T*>(memory.data() + offset);
}

template <class T>
void mark_written(const T* matrix, int rows, int columns, int leading) {
  Memory& memory = cuda_emulator::memory_at(matrix, static_cast<size_t>(rows) * sizeof(T), "gemm: C");
  const size_t offset = reinterpret_cast<uintptr_t>(matrix) - memory.address();
  for (size_t j = 0; j < static_cast<size_t>(columns); ++j)
    memory.host_write(offset + j * static_cast<size_t>(leading) * sizeof(T), static_cast<size_t>(rows) * sizeof(T));
}

template <class T>
void product(bool ta, bool tb, int m, int n, int k, T alpha, const T* a, int lda, const T* b, int ldb, T beta, T* c, int ldc) {
  const T* const from_a = alpha != 0 ? columns_of(a, ta ? k : m, ta ? m : k, lda, true, "gemm: A") : nullptr;
  const T* const from_b = alpha != 0 ? columns_of(b, tb ? n : k, tb ? k : n, ldb, true, "gemm: B") : nullptr;
  T* const to = columns_of(c, m, n, ldc, beta != 0, "gemm: C");
  const auto at = [](int row, int column, int leading) {
    return static_cast<size_t>(column) * static_cast<size_t>(leading) + static_cast<size_t>(row);
  };
  for (int j = 0; j < n; ++j) {
    for (int i = 0; i < m; ++i) {
      T sum = 0;
      for (int l = 0; l < k && from_a && from_b; ++l) sum += from_a[ta ? at(l, i, lda) : at(i, l, lda)] * from_b[tb ? at(j, l, ldb) : at(l, j, ldb)];
      T& out = to[at(i, j, ldc)];
      out = beta != 0 ? alpha * sum + beta * out : alpha * sum;
    }
  }
  mark_written(c, m, n, ldc);
}

template <class T>
cublasStatus_t gemm(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k, const T* alpha, const T* a, int lda,
                    long long stride_a, const T* b, int ldb, long long stride_b, const T* beta, T* c, int ldc, long long stride_c, int batch) {
  const bool ta = op_a == CUBLAS_OP_T, tb = op_b == CUBLAS_OP_T;
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (m < 0 || n < 0 || k < 0 || batch < 0 || lda < std::max(1, ta ? k : m) || ldb < std::max(1, tb ? n : k) || ldc < std::max(1, m))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (m == 0 || n == 0) return CUBLAS_STATUS_SUCCESS;
  for (int i = 0; i < batch; ++i) product(ta, tb, m, n, k, *alpha, a + i * stride_a, lda, b + i * stride_b, ldb, *beta, c + i * stride_c, ldc);
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

const char* cublasGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
  }
  return "unknown status";
}
cublasStatus_t cublasCreate(cublasHandle_t* handle) { return *handle = new cublasContext, CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasDestroy(cublasHandle_t handle) { return delete handle, CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t) { return handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED; }
cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t) { return handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED; }

cublasStatus_t cublasSgemm(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k, const float* alpha,
                           const float* a, int lda, const float* b, int ldb, const float* beta, float* c, int ldc) {
  return gemm(handle, op_a, op_b, m, n, k, alpha, a, lda, 0, b, ldb, 0, beta, c, ldc, 0, 1);
}
cublasStatus_t cublasDgemm(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k, const double* alpha,
                           const double* a, int lda, const double* b, int ldb, const double* beta, double* c, int ldc) {
  return gemm(handle, op_a, op_b, m, n, k, alpha, a, lda, 0, b, ldb, 0, beta, c, ldc, 0, 1);
}
cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k,
                                         const float* alpha, const float* a, int lda, long long stride_a, const float* b, int ldb, long long stride_b,
                                         const float* beta, float* c, int ldc, long long stride_c, int batch) {
  return gemm(handle, op_a, op_b, m, n, k, alpha, a, lda, stride_a, b, ldb, stride_b, beta, c, ldc, stride_c, batch);
}
cublasStatus_t cublasDgemmStridedBatched(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k,
                                         const double* alpha, const double* a, int lda, long long stride_a, const double* b, int ldb,
                                         long long stride_b, const double* beta, double* c, int ldc, long long stride_c, int batch) {
  return gemm(handle, op_a, op_b, m, n, k, alpha, a, lda, stride_a, b, ldb, stride_b, beta, c, ldc, stride_c, batch);
}
