// Which product is computed by whom: lamina's own kernels for small sides, OpenBLAS for the rest. OpenBLAS is never called inside a parallel loop.

#include <cblas.h>

#include <algorithm>
#include <limits>
#include <mutex>

#include <lamina/core/parallel.h>
#include "kernels/cpu/gemm_own.h"
#include "kernels/kernels.h"

namespace lamina::kernels {
namespace {

CBLAS_TRANSPOSE flag(bool transposed) { return transposed ? CblasTrans : CblasNoTrans; }
blasint narrow(int64_t size) { return static_cast<blasint>(size); }

/// Runs one product of OpenBLAS on num_threads() threads. One at a time: its OpenMP flavour lets a second caller spin until the first is done (with
/// more callers than cores that costs many times the products), and a change of its thread count frees the buffers of a product beside.
template <class F>
void one_at_a_time(F&& product) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  detail::use_blas_threads();
  product();
}

void blas(int64_t m, int64_t n, int64_t k, const Matrix<float>& a, const Matrix<float>& b, float beta, float* c, int64_t ldc) {
  cblas_sgemm(CblasRowMajor, flag(a.transposed), flag(b.transposed), narrow(m), narrow(n), narrow(k), 1.0f, a.data, narrow(a.ld), b.data,
              narrow(b.ld), beta, c, narrow(ldc));
}
void blas(int64_t m, int64_t n, int64_t k, const Matrix<double>& a, const Matrix<double>& b, double beta, double* c, int64_t ldc) {
  cblas_dgemm(CblasRowMajor, flag(a.transposed), flag(b.transposed), narrow(m), narrow(n), narrow(k), 1.0, a.data, narrow(a.ld), b.data, narrow(b.ld),
              beta, c, narrow(ldc));
}

/// Where lamina's own kernels are faster than OpenBLAS 0.3.21. Seen on one Zen 4 core in f32 (own / OpenBLAS, us):
///   x W^T, W [1000,784]:  4 rows 66 / 207, 16 rows 252 / 372, 32 rows 500 / 609, 128 rows 2133 / 2080; 128 rows, W [10,1000]: 31 / 54
///   dy W:                 4 rows 71 / 128,  8 rows 149 / 188, 16 rows 349 / 299
///   dy^T x:               4 rows 72 / 130, 16 rows 279 / 296, 32 rows 584 / 522
/// In f64 the last two cross over at half of that. With one row the two are equal.
template <class T>
bool own_is_faster(int64_t m, int64_t n, int64_t k, bool a_transposed, bool b_transposed) {
  constexpr int64_t kBytes = sizeof(T);
  if (m * n * k <= 16 * 16 * 16 || std::max({m, n, k}) > std::numeric_limits<blasint>::max()) return true;  // or all that BLAS cannot count
  if (b_transposed) return !a_transposed && (m <= 24 || n <= 16);
  if (a_transposed && k <= 16) return true;  // a weight gradient that could be factored: its bits are those of the fused updates (see RankUpdate)
  return m * kBytes <= 32 || k * kBytes <= 64;
}

template <class T>
struct CpuGemm final : GemmKernels<T> {
  void gemm(int64_t m, int64_t n, int64_t k, Matrix<T> a, Matrix<T> b, T beta, T* c, int64_t ldc, const T* bias) const override {
    if (k == 0 || own_is_faster<T>(m, n, k, a.transposed, b.transposed)) return cpu::own_gemm(m, n, k, a, b, beta, c, ldc, bias);
    if (bias) {
      cpu::scale_and_bias(m, n, beta, c, ldc, bias);
      beta = T(1);
    }
    one_at_a_time([&] { blas(m, n, k, a, b, beta, c, ldc); });
  }

  void gemm_batched(int64_t count, int64_t m, int64_t n, int64_t k, Matrix<T> a, int64_t stride_a, Matrix<T> b, int64_t stride_b, T beta, T* c,
                    int64_t ldc, int64_t stride_c) const override {
    const auto one = [&](int64_t i, auto&& product) {
      product(m, n, k, Matrix<T>{a.data + i * stride_a, a.ld, a.transposed}, Matrix<T>{b.data + i * stride_b, b.ld, b.transposed}, beta,
              c + i * stride_c, ldc, nullptr);
    };
    // A product that is too small to share out is computed by one thread, beside others.
    constexpr int64_t kSmall = 64 * 64 * 64;
    const int64_t work = m * n * k;
    if (work > kSmall) {
      for (int64_t i = 0; i < count; ++i) one(i, [this](auto... arguments) { this->gemm(arguments...); });
      return;
    }
    parallel_for(count, std::max<int64_t>(1, 65536 / std::max<int64_t>(1, work)), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) one(i, [](auto... arguments) { cpu::own_gemm<T>(arguments...); });
    });
  }

  Packed<T> pack(int64_t k, int64_t n, Matrix<T> b) const override { return cpu::pack_panels(k, n, b); }

  void gemm(int64_t m, Matrix<T> a, const Packed<T>& b, T beta, T* c, int64_t ldc, const T* bias) const override {
    cpu::packed_gemm(m, a, b, beta, c, ldc, bias);
  }
};

}  // namespace

template <>
const GemmKernels<float>& CpuBackend::gemm<float>() {
  static const CpuGemm<float> kernels;
  return kernels;
}
template <>
const GemmKernels<double>& CpuBackend::gemm<double>() {
  static const CpuGemm<double> kernels;
  return kernels;
}

}  // namespace lamina::kernels
