// Products with a right operand laid out once: panels of 128 bytes of columns, each [k, panel] contiguous, zeros beyond column n. Panels (and where
// they are few, blocks of rows) are shared out among threads; within one, tiles of C stay in registers over all of k.

#include <algorithm>

#include <lamina/core/parallel.h>
#include "kernels/cpu/gemm_own.h"
#include "kernels/cpu/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gemm_packed.cpp"
#include <hwy/foreach_target.h>

#include "kernels/cpu/gemm_parts.h"
#include "kernels/cpu/simd.h"

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels::HWY_NAMESPACE {

template <class T>
void packed_gemm_on_target(int64_t m, const Matrix<T>& a, const Packed<T>& b, T beta, T* c, int64_t ldc, const T* bias) {
  const int64_t panels = (b.n + kPanel<T> - 1) / kPanel<T>, row = a.transposed ? 1 : a.ld;
  // Few panels do not share out evenly: then blocks of rows as well.
  const int64_t blocks = std::clamp<int64_t>(8 * num_threads() / panels, 1, std::max<int64_t>(1, m / (2 * kTileRows)));
  const int64_t rows = (m + blocks - 1) / blocks, work = kPanel<T> * b.k * std::max<int64_t>(1, rows / 4);
  parallel_for(panels * blocks, std::max<int64_t>(1, 65536 / work), [&](int64_t begin, int64_t end) HWY_ATTR {
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t panel = unit / blocks, top = unit % blocks * rows;
      if (top >= m) continue;
      const Output<T> out{beta, c + top * ldc, ldc, bias};
      times_panel<T>(std::min(rows, m - top), b.k, {a.data + top * row, a.ld, a.transposed}, 0, b.data.get() + panel * kPanel<T> * b.k,
                     panel * kPanel<T>, b.n, out);
    }
  });
}

template <class T>
void pack_on_target(int64_t k, int64_t n, const Matrix<T>& b, T* panels) {
  parallel_for((n + kPanel<T> - 1) / kPanel<T>, std::max<int64_t>(1, 32768 / (kPanel<T> * std::max<int64_t>(1, k))), [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) pack_panel(b, 0, k, panel * kPanel<T>, n, panels + panel * kPanel<T> * k);
  });
}

void pack_f32(int64_t k, int64_t n, const Matrix<float>& b, float* panels) { pack_on_target(k, n, b, panels); }
void pack_f64(int64_t k, int64_t n, const Matrix<double>& b, double* panels) { pack_on_target(k, n, b, panels); }
void packed_gemm_f32(int64_t m, const Matrix<float>& a, const Packed<float>& b, float beta, float* c, int64_t ldc, const float* bias) {
  packed_gemm_on_target(m, a, b, beta, c, ldc, bias);
}
void packed_gemm_f64(int64_t m, const Matrix<double>& a, const Packed<double>& b, double beta, double* c, int64_t ldc, const double* bias) {
  packed_gemm_on_target(m, a, b, beta, c, ldc, bias);
}

}  // namespace lamina::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lamina::kernels {

HWY_EXPORT(pack_f32);
HWY_EXPORT(pack_f64);
HWY_EXPORT(packed_gemm_f32);
HWY_EXPORT(packed_gemm_f64);

namespace cpu {

template <class T, class Pack>
Packed<T> packed(int64_t k, int64_t n, Pack&& pack) {
  Packed<T> result{.k = k, .n = n, .data = shared_scratch<T>((n + kPanel<T> - 1) / kPanel<T> * kPanel<T> * k)};
  pack(result.data.get());
  return result;
}

template <>
Packed<float> pack_panels(int64_t k, int64_t n, Matrix<float> b) {
  return packed<float>(k, n, [&](float* panels) { HWY_DYNAMIC_DISPATCH(pack_f32)(k, n, b, panels); });
}
template <>
Packed<double> pack_panels(int64_t k, int64_t n, Matrix<double> b) {
  return packed<double>(k, n, [&](double* panels) { HWY_DYNAMIC_DISPATCH(pack_f64)(k, n, b, panels); });
}

template <>
void packed_gemm(int64_t m, Matrix<float> a, const Packed<float>& b, float beta, float* c, int64_t ldc, const float* bias) {
  if (m == 0 || b.n == 0) return;
  if (b.k == 0) return scale_and_bias(m, b.n, beta, c, ldc, bias);
  HWY_DYNAMIC_DISPATCH(packed_gemm_f32)(m, a, b, beta, c, ldc, bias);
}
template <>
void packed_gemm(int64_t m, Matrix<double> a, const Packed<double>& b, double beta, double* c, int64_t ldc, const double* bias) {
  if (m == 0 || b.n == 0) return;
  if (b.k == 0) return scale_and_bias(m, b.n, beta, c, ldc, bias);
  HWY_DYNAMIC_DISPATCH(packed_gemm_f64)(m, a, b, beta, c, ldc, bias);
}

}  // namespace cpu
}  // namespace lamina::kernels
#endif
