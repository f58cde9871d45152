// Products by cuBLAS. It sees matrices column by column: what stands row-major as [m, n] is its [n, m], so it is asked for C^T = B^T A^T. Its 64-bit
// functions take any size.
//
// f32 products are exact to f32's rounding unless TF32 was allowed. Unlike on the CPU, the weight gradient of a small batch agrees with the updates
// that form it from its factors (RankUpdate) to rounding only: cuBLAS chooses the order of its sums.

#include <cublas_v2.h>
#include <fmt/format.h>

#include <lamina/core/error.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <string>

#include "kernels/cuda/backend.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/gemm.h"

namespace lamina::kernels {

namespace cuda {

namespace {

void check(const Op& op, cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  cudaGetLastError();  // it is reported now; the next check must not find it again
  std::string sizes;
  for (const Op::Size& size : op) sizes += fmt::format("{}{} {}", sizes.empty() ? "; " : ", ", size.name, size.value);
  fail(op.name(), fmt::format("cuBLAS: {} in {}{}", cublasGetStatusString(status), call, sizes));
}

/// cuBLAS on one GPU, on its stream and with memory of its own: so its results do not change from run to run, and it allocates nothing while a graph
/// is captured. The handle itself is never destroyed: at the program's end CUDA may be gone already.
class Blas {
 public:
  Blas() = default;
  ~Blas() { static_cast<void>(cudaFree(workspace_)); }
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  cublasHandle_t handle(const Op& op, bool tf32) {
    if (!handle_) make(op);
    if (tf32 != tf32_) {
      check(op, cublasSetMathMode(handle_, tf32 ? CUBLAS_TF32_TENSOR_OP_MATH : CUBLAS_DEFAULT_MATH), "cublasSetMathMode");
      tf32_ = tf32;
    }
    return handle_;
  }

 private:
  void make(const Op& op) {
    int major = 0;
    check(op, cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, current_device()), "cudaDeviceGetAttribute");
    const size_t bytes = (major >= 9 ? 32 : 4) << 20;  // what NVIDIA recommends
    if (!workspace_) check(op, cudaMalloc(&workspace_, bytes), "cudaMalloc");
    cublasHandle_t made = nullptr;
    check(op, cublasCreate(&made), "cublasCreate");
    check(op, cublasSetStream(made, stream()), "cublasSetStream");  // takes the workspace away, so it comes first
    check(op, cublasSetWorkspace(made, workspace_, bytes), "cublasSetWorkspace");
    handle_ = made;
  }

  cublasHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  bool tf32_ = false;
};

std::atomic<bool> tf32_allowed = false;

/// f(handle), one at a time: a handle's settings belong to all its threads.
template <class F>
void with_blas(const Op& op, F&& f) {
  static std::array<Blas, most_devices> of_device;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  f(of_device.at(static_cast<size_t>(current_device())).handle(op, tf32_allowed.load()));
}

/// A matrix as cuBLAS is told of it; `rows` x `columns` once transposed.
template <class T>
struct Operand {
  Operand(const Matrix<T>& matrix, int64_t rows, int64_t columns) : data(matrix.data), transposed(matrix.transposed ? CUBLAS_OP_T : CUBLAS_OP_N) {
    const int64_t down = matrix.transposed ? columns : rows, across = matrix.transposed ? rows : columns;
    ld = down == 1 ? std::max(matrix.ld, across) : matrix.ld;  // of a single row it says nothing
  }
  const T* data;
  cublasOperation_t transposed;
  int64_t ld;
};

template <class T>
struct Product {
  int64_t count, m, n, k;
  Operand<T> a, b;
  int64_t stride_a, stride_b;
  T beta;
  T* c;
  int64_t ldc, stride_c;
};

/// The products [from, from + count).
template <class T>
void multiply(const Op& op, cublasHandle_t handle, const Product<T>& p, int64_t from, int64_t count) {
  const T one = 1;
  const T *const a = p.a.data + from * p.stride_a, *const b = p.b.data + from * p.stride_b;
  T* const c = p.c + from * p.stride_c;
  if constexpr (sizeof(T) == 4) {
    if (count == 1)
      check(op, cublasSgemm_64(handle, p.b.transposed, p.a.transposed, p.n, p.m, p.k, &one, b, p.b.ld, a, p.a.ld, &p.beta, c, p.ldc), "cublasSgemm");
    else
      check(op,
            cublasSgemmStridedBatched_64(handle, p.b.transposed, p.a.transposed, p.n, p.m, p.k, &one, b, p.b.ld, p.stride_b, a, p.a.ld, p.stride_a,
                                         &p.beta, c, p.ldc, p.stride_c, count),
            "cublasSgemmStridedBatched");
  } else {
    if (count == 1)
      check(op, cublasDgemm_64(handle, p.b.transposed, p.a.transposed, p.n, p.m, p.k, &one, b, p.b.ld, a, p.a.ld, &p.beta, c, p.ldc), "cublasDgemm");
    else
      check(op,
            cublasDgemmStridedBatched_64(handle, p.b.transposed, p.a.transposed, p.n, p.m, p.k, &one, b, p.b.ld, p.stride_b, a, p.a.ld, p.stride_a,
                                         &p.beta, c, p.ldc, p.stride_c, count),
            "cublasDgemmStridedBatched");
  }
}

template <class T>
void multiply(const Op& op, const Product<T>& p) {
  constexpr int64_t most = 32'768;  // products of a call: their number is an axis of a grid that ends at 65,535
  with_blas(op, [&](cublasHandle_t handle) {
    for (int64_t from = 0; from < p.count; from += most) multiply(op, handle, p, from, std::min(most, p.count - from));
  });
}

template <class T>
struct CudaGemm final : GemmKernels<T> {
  void gemm(int64_t m, int64_t n, int64_t k, Matrix<T> a, Matrix<T> b, T beta, T* c, int64_t ldc, const T* bias) const override {
    const Op op("gemm", {{"m", m}, {"n", n}, {"k", k}, {"lda", a.ld}, {"ldb", b.ld}, {"ldc", ldc}});
    if (m == 0 || n == 0) return;
    if (bias || k == 0) {
      scale_and_bias(op, 1, m, n, beta, c, ldc, 0, bias);
      if (k == 0) return;
      beta = T(1);
    }
    multiply(op, Product<T>{1, m, n, k, Operand<T>(a, m, k), Operand<T>(b, k, n), 0, 0, beta, c, m == 1 ? std::max(ldc, n) : ldc, 0});
  }

  void gemm_batched(int64_t count, int64_t m, int64_t n, int64_t k, Matrix<T> a, int64_t stride_a, Matrix<T> b, int64_t stride_b, T beta, T* c,
                    int64_t ldc, int64_t stride_c) const override {
    const Op op("gemm_batched", {{"count", count}, {"m", m}, {"n", n}, {"k", k}});
    if (count == 0 || m == 0 || n == 0) return;
    if (k == 0) return scale_and_bias<T>(op, count, m, n, beta, c, ldc, stride_c, nullptr);
    multiply(op, Product<T>{count, m, n, k, Operand<T>(a, m, k), Operand<T>(b, k, n), stride_a, stride_b, beta, c, m == 1 ? std::max(ldc, n) : ldc,
                            stride_c});
  }

  Packed<T> pack(int64_t k, int64_t n, Matrix<T> b, int64_t) const override {
    return {k, n, std::shared_ptr<T>(std::shared_ptr<void>(), const_cast<T*>(b.data)), b.ld, b.transposed};
  }
  void gemm(int64_t m, Matrix<T> a, const Packed<T>& b, T beta, T* c, int64_t ldc, const T* bias) const override {
    gemm(m, b.n, b.k, a, {b.data.get(), b.ld, b.transposed}, beta, c, ldc, bias);
  }
};

}  // namespace

}  // namespace cuda

template <>
const GemmKernels<float>& CudaBackend::gemm<float>() {
  static const cuda::CudaGemm<float> kernels;
  return kernels;
}
template <>
const GemmKernels<double>& CudaBackend::gemm<double>() {
  static const cuda::CudaGemm<double> kernels;
  return kernels;
}

void CudaBackend::allow_tf32(bool allow) { cuda::tf32_allowed = allow; }

}  // namespace lamina::kernels
