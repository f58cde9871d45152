#include <algorithm>
#include <bit>
#include <cstring>
#include <mutex>
#include <type_traits>
#include <vector>

#include "cuda_emulator/cublas_v2.h"
#include "cuda_emulator/heap.h"
#include "cuda_emulator/report.h"
#include "cuda_emulator/streams.h"

struct cublasContext {
  cudaStream_t stream = nullptr;
  cublasMath_t math = CUBLAS_DEFAULT_MATH;
};

namespace {

using cuda_emulator::Memory;

// A column-major matrix in device memory.
template <class T>
struct Matrix {
  T* first;
  int64_t rows, columns, leading;

  bool empty() const { return rows == 0 || columns == 0; }
  size_t bytes() const { return static_cast<size_t>(leading * (columns - 1) + rows) * sizeof(T); }
  Memory& memory(const char* name) const {
    Memory& memory = cuda_emulator::memory_at(first, bytes(), name);
    if (memory.device() != cuda_emulator::current_device()) cuda_emulator::violation(std::string(name) + " is memory of another device");
    return memory;
  }
  // f(offset, bytes) for every column, or once where nothing lies in between.
  template <class F>
  void each(const Memory& memory, F&& f) const {
    const size_t offset = reinterpret_cast<uintptr_t>(first) - memory.address();
    if (rows == leading) return f(offset, bytes());
    for (int64_t j = 0; j < columns; ++j) f(offset + static_cast<size_t>(j * leading) * sizeof(T), static_cast<size_t>(rows) * sizeof(T));
  }
  // The host's view of it.
  T* data(const char* name, bool is_read) const {
    if (empty()) return nullptr;
    Memory& whole = memory(name);
    if (is_read) each(whole, [&](size_t offset, size_t n) { whole.host_read(offset, n, name); });
    return reinterpret_cast<T*>(whole.data() + (reinterpret_cast<uintptr_t>(first) - whole.address()));
  }
  void mark_written(const char* name) const {
    Memory& whole = memory(name);
    each(whole, [&](size_t offset, size_t n) { whole.host_write(offset, n); });
  }
};

template <class T>
using Vector __attribute__((vector_size(16))) = T;
template <class T>
constexpr int lanes_of = 16 / static_cast<int>(sizeof(T));
template <class T>
constexpr int panel_rows = 2 * lanes_of<T>;
constexpr int panel_columns = 4;

// As TensorFloat-32: ten bits of fraction, to the nearest, away from zero between two.
double rounded(double x, bool) { return x; }
float rounded(float x, bool tf32) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if (!tf32 || (bits & 0x7F800000) == 0x7F800000) return x;
  return std::bit_cast<float>((bits + 0x1000) & ~uint32_t{0x1FFF});
}

// op(matrix)[first .. first + width, 0 .. depth) (or its transpose, by the strides) as depth rows of `width`, of which `valid` exist.
template <class T>
void pack(const T* from, int64_t step, int64_t depth_step, int64_t valid, int width, int64_t depth, bool tf32, T* to) {
  for (int64_t l = 0; l < depth; ++l)
    for (int i = 0; i < width; ++i) *to++ = i < valid ? rounded(from[i * step + l * depth_step], tf32) : T{0};
}

// sums[j][i] = sum over l of a[l][i] b[l][j].
template <class T>
void multiply_panels(int64_t depth, const T* a, const T* b, T (&sums)[panel_columns][panel_rows<T>]) {
  constexpr int w = lanes_of<T>;
  Vector<T> sum[panel_columns][2] = {};
  for (int64_t l = 0; l < depth; ++l, a += panel_rows<T>, b += panel_columns) {
    Vector<T> low, high;
    std::memcpy(&low, a, 16);
    std::memcpy(&high, a + w, 16);
    for (int j = 0; j < panel_columns; ++j) {
      sum[j][0] += low * b[j];
      sum[j][1] += high * b[j];
    }
  }
  std::memcpy(sums, sum, sizeof sums);
}

template <class T>
struct Product {
  bool ta, tb, tf32;
  int64_t m, n, k;
  T alpha, beta;
  const T* a;
  int64_t lda;
  const T* b;
  int64_t ldb;
  T* c;
  int64_t ldc;

  void run() const {
    const bool multiplies = alpha != 0 && k > 0;
    const Matrix<const T> matrix_a{a, ta ? k : m, ta ? m : k, lda}, matrix_b{b, tb ? n : k, tb ? k : n, ldb};
    const Matrix<T> matrix_c{c, m, n, ldc};
    const T* const from_a = multiplies ? matrix_a.data("gemm: A", true) : nullptr;
    const T* const from_b = multiplies ? matrix_b.data("gemm: B", true) : nullptr;
    T* const to = matrix_c.data("gemm: C", beta != 0);
    constexpr int height = panel_rows<T>, width = panel_columns;
    const int64_t depth = multiplies ? k : 0, panels = (m + height - 1) / height;
    std::vector<T> packed_a(static_cast<size_t>(panels * height * depth)), packed_b(static_cast<size_t>(width * depth));
    for (int64_t p = 0; p < panels && multiplies; ++p) {
      const T* const from = from_a + p * height * (ta ? lda : 1);
      pack(from, ta ? lda : 1, ta ? 1 : lda, m - p * height, height, depth, tf32, packed_a.data() + p * height * depth);
    }
    for (int64_t j = 0; j < n; j += width) {
      if (multiplies) pack(from_b + j * (tb ? 1 : ldb), tb ? 1 : ldb, tb ? ldb : 1, n - j, width, depth, tf32, packed_b.data());
      for (int64_t p = 0; p < panels; ++p) {
        T sums[width][height];
        multiply_panels(depth, packed_a.data() + p * height * depth, packed_b.data(), sums);
        for (int x = 0; x < width && j + x < n; ++x)
          for (int y = 0; y < height && p * height + y < m; ++y) {
            T& out = to[(j + x) * ldc + p * height + y];
            out = beta != 0 ? alpha * sums[x][y] + beta * out : alpha * sums[x][y];
          }
      }
    }
    matrix_c.mark_written("gemm: C");
  }
};

template <class T>
cublasStatus_t gemm(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int64_t m, int64_t n, int64_t k, const T* alpha,
                    const T* a, int64_t lda, long long stride_a, const T* b, int64_t ldb, long long stride_b, const T* beta, T* c, int64_t ldc,
                    long long stride_c, int64_t batch) {
  const std::lock_guard lock(cuda_emulator::one_at_a_time());
  const bool ta = op_a == CUBLAS_OP_T, tb = op_b == CUBLAS_OP_T;
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  const auto least = [](int64_t rows) { return std::max<int64_t>(1, rows); };
  if (m < 0 || n < 0 || k < 0 || batch < 0 || lda < least(ta ? k : m) || ldb < least(tb ? n : k) || ldc < least(m))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (m == 0 || n == 0 || batch == 0) return CUBLAS_STATUS_SUCCESS;
  const bool tf32 = std::is_same_v<T, float> && handle->math == CUBLAS_TF32_TENSOR_OP_MATH;
  const Product<T> first{ta, tb, tf32, m, n, k, *alpha, *beta, a, lda, b, ldb, c, ldc};
  const cudaError_t status = cuda_emulator::submit(handle->stream, [=] {
    for (int64_t i = 0; i < batch; ++i) {
      Product<T> product = first;
      product.a += i * stride_a;
      product.b += i * stride_b;
      product.c += i * stride_c;
      product.run();
    }
  });
  return status == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // namespace

const char* cublasGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
  }
  return "unknown status";
}
cublasStatus_t cublasCreate(cublasHandle_t* handle) { return *handle = new cublasContext, CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasDestroy(cublasHandle_t handle) { return delete handle, CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  handle->stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void* workspace, size_t bytes) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (bytes > 0) cuda_emulator::memory_at(workspace, bytes, "cublasSetWorkspace");
  return reinterpret_cast<uintptr_t>(workspace) % 256 == 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}
cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  handle->math = mode;
  return CUBLAS_STATUS_SUCCESS;
}

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

cublasStatus_t cublasSgemm_64(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int64_t m, int64_t n, int64_t k,
                              const float* alpha, const float* a, int64_t lda, const float* b, int64_t ldb, const float* beta, float* c,
                              int64_t ldc) {
  return gemm(handle, op_a, op_b, m, n, k, alpha, a, lda, 0, b, ldb, 0, beta, c, ldc, 0, 1);
}
cublasStatus_t cublasDgemm_64(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int64_t m, int64_t n, int64_t k,
                              const double* alpha, const double* a, int64_t lda, const double* b, int64_t ldb, const double* beta, double* c,
                              int64_t ldc) {
  return gemm(handle, op_a, op_b, m, n, k, alpha, a, lda, 0, b, ldb, 0, beta, c, ldc, 0, 1);
}
cublasStatus_t cublasSgemmStridedBatched_64(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int64_t m, int64_t n, int64_t k,
                                            const float* alpha, const float* a, int64_t lda, long long stride_a, const float* b, int64_t ldb,
                                            long long stride_b, const float* beta, float* c, int64_t ldc, long long stride_c, int64_t batch) {
  return gemm(handle, op_a, op_b, m, n, k, alpha, a, lda, stride_a, b, ldb, stride_b, beta, c, ldc, stride_c, batch);
}
cublasStatus_t cublasDgemmStridedBatched_64(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int64_t m, int64_t n, int64_t k,
                                            const double* alpha, const double* a, int64_t lda, long long stride_a, const double* b, int64_t ldb,
                                            long long stride_b, const double* beta, double* c, int64_t ldc, long long stride_c, int64_t batch) {
  return gemm(handle, op_a, op_b, m, n, k, alpha, a, lda, stride_a, b, ldb, stride_b, beta, c, ldc, stride_c, batch);
}
