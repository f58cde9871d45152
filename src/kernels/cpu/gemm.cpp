// Which product is computed by whom: lamina's own kernels where they are faster, OpenBLAS for the rest. OpenBLAS is never called inside a parallel
// loop.

#include <cblas.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <type_traits>

#include <lamina/core/parallel.h>
#include "core/matrix_unit.h"
#include "kernels/cpu/gemm_own.h"
#include "kernels/cpu/gemm_split.h"
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

template <class T>
void blas(int64_t m, int64_t n, int64_t k, const Matrix<T>& a, const Matrix<T>& b, T beta, T* c, int64_t ldc) {
  const auto call = [&](auto gemm) {
    gemm(CblasRowMajor, flag(a.transposed), flag(b.transposed), narrow(m), narrow(n), narrow(k), T(1), a.data, narrow(a.ld), b.data, narrow(b.ld),
         beta, c, narrow(ldc));
  };
  if constexpr (std::is_same_v<T, float>) {
    call(cblas_sgemm);
  } else {
    call(cblas_dgemm);
  }
}

/// Who computes a product, from what was seen on two Zen 4 cores (us, f32; skinny / blocked / OpenBLAS 0.3.21):
///   x W^T,  W [1000,784]: 8 rows  77 / 145 / 200,  24 rows 197 / 253 / 342,  64 rows 518 / 479 / 619,  128 rows  - /  960 / 1174
///   dy W,   W [1000,784]: 8 rows 123 / 153 / 195,  24 rows 428 / 283 / 339,  64 rows 913 / 537 / 633,  128 rows  - / 1084 / 1229
///   dy^T x, [1000,784]:   8 rows  84 / 132 / 154,  24 rows 268 / 255 / 254,  64 rows   - / 567 / 548,  128 rows  - / 1071 / 1025
/// (OpenBLAS in the last line in another, faster sitting.)
/// The blocked products also leave a weight's rows with the core that updates them, which these times of single products do not show. Beyond some
/// size a weight fits in no cache, and nothing is lost to BLAS.
enum class By { skinny, blocked, blas };

template <class T>
By chosen(int64_t m, int64_t n, int64_t k, const Matrix<T>& a, const Matrix<T>& b) {
  const bool a_transposed = a.transposed, b_transposed = b.transposed;
  constexpr int64_t kBytes = sizeof(T), kLarge = int64_t{1} << 29;
  if (k == 0 || m * n * k <= 16 * 16 * 16) return By::skinny;
  const bool countable = std::max({m, n, k, a.ld, b.ld}) <= std::numeric_limits<blasint>::max();
  // Blocked products share out C's columns, or a weight gradient's rows: few of these are BLAS's.
  const bool few = a_transposed ? m < 128 || n < 8 : n < 128;
  const By many = countable && (few || m * n * k >= kLarge) ? By::blas : By::blocked;
  if (b_transposed) {
    if (a_transposed) return countable ? By::blas : By::skinny;
    return m <= 24 || n <= 16 ? By::skinny : many;  // x W^T
  }
  // dy^T x. A weight gradient that could be factored has the bits of the fused updates (see RankUpdate).
  if (a_transposed) return k <= 16 || m <= 4 ? By::skinny : m <= 32 && countable ? By::blas : many;
  return (m * kBytes <= 80 && n >= 16) || k * kBytes <= 64 ? By::skinny : many;  // dy W
}

/// Whether a product is for the processor's matrix unit, and there is one.
bool for_matrix_unit(int64_t m, int64_t n, int64_t k) {
  return std::min(m, n) >= cpu::kUnitRows && k > 16 && m * n * k >= 1 << 18 && lamina::detail::has_matrix_unit();
}

template <class T>
struct CpuGemm final : GemmKernels<T> {
  void gemm(int64_t m, int64_t n, int64_t k, Matrix<T> a, Matrix<T> b, T beta, T* c, int64_t ldc, const T* bias) const override {
    if constexpr (std::is_same_v<T, float>)
      if (for_matrix_unit(m, n, k)) return cpu::split_gemm(m, n, k, a, b, beta, c, ldc, bias);
    const By by = chosen<T>(m, n, k, a, b);
    if (by == By::skinny) return cpu::own_gemm(m, n, k, a, b, beta, c, ldc, bias);
    if (by == By::blocked) return cpu::blocked_gemm(m, n, k, a, b, beta, c, ldc, bias);
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

  Packed<T> pack(int64_t k, int64_t n, Matrix<T> b, int64_t rows) const override {
    Packed<T> packed = cpu::pack_panels(k, n, b);
    if constexpr (std::is_same_v<T, float>)
      if (for_matrix_unit(rows, n, k)) cpu::add_split(b, packed);
    return packed;
  }

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
