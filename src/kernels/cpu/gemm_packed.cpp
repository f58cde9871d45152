// Products with a right operand laid out once: panels of 128 bytes of columns, each [k, panel] contiguous, zeros beyond column n. Panels are shared
// out among threads; within one, tiles of C stay in registers over all of k.

#include <algorithm>
#include <new>

#include <lamina/core/parallel.h>
#include "kernels/cpu/gemm_own.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gemm_packed.cpp"
#include <hwy/foreach_target.h>

#include "kernels/cpu/simd.h"

#ifndef LAMINA_GEMM_PACKED_ONCE
#define LAMINA_GEMM_PACKED_ONCE
namespace lamina::kernels::cpu {
constexpr int64_t kAlignment = 128;  // a panel's row is two cache lines
template <class T>
constexpr int64_t kPanel = kAlignment / static_cast<int64_t>(sizeof(T));
}  // namespace lamina::kernels::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels::HWY_NAMESPACE {

using cpu::kPanel;

/// What a tile does with its sums: C = sums + beta C + bias.
template <class T>
struct Epilogue {
  T beta;
  T* c;
  int64_t ldc;
  const T* bias;

  template <class At>
  HWY_INLINE void apply(At at, int64_t row, Vec<T> v) const {
    T* target = c + row * ldc;
    if (beta != T(0)) v = hn::MulAdd(set(beta), at.load(target), v);
    if (bias) v = hn::Add(v, at.load(bias));
    at.store(target, v);
  }
};

/// kRows x two vectors of C: a[r * row + p * depth] times the panel's rows.
template <class T, int kRows>
HWY_INLINE void tile(int64_t k, const T* a, int64_t row, int64_t depth, const T* panel, int64_t columns, const Epilogue<T>& out, int64_t i) {
  const int64_t step = lanes<T>();
  Vec<T> left[kRows], right[kRows];
  for (int r = 0; r < kRows; ++r) left[r] = right[r] = zero<T>();
  for (int64_t p = 0; p < k; ++p) {
    const Vec<T> b0 = load(panel + p * kPanel<T>), b1 = load(panel + p * kPanel<T> + step);
    for (int r = 0; r < kRows; ++r) {
      const Vec<T> factor = set(a[r * row + p * depth]);
      left[r] = hn::MulAdd(factor, b0, left[r]);
      right[r] = hn::MulAdd(factor, b1, right[r]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    if (columns >= 2 * step) {
      out.apply(WholeVector<T>{0}, i + r, left[r]);
      out.apply(WholeVector<T>{step}, i + r, right[r]);
      continue;
    }
    if (columns < step) {
      out.apply(PartialVector<T>{0, columns}, i + r, left[r]);
    } else {
      out.apply(WholeVector<T>{0}, i + r, left[r]);
      if (columns > step) out.apply(PartialVector<T>{step, columns - step}, i + r, right[r]);
    }
  }
}

/// The last rows, fewer than a full tile has.
template <class T, int kRows>
HWY_INLINE void last_tile(int64_t rows, int64_t k, const T* a, int64_t row, int64_t depth, const T* panel, int64_t columns, const Epilogue<T>& out,
                          int64_t i) {
  if constexpr (kRows > 0) {
    if (rows == kRows) return tile<T, kRows>(k, a, row, depth, panel, columns, out, i);
    last_tile<T, kRows - 1>(rows, k, a, row, depth, panel, columns, out, i);
  }
}

template <class T>
void packed_gemm_on_target(int64_t m, const Matrix<T>& a, const Packed<T>& b, T beta, T* c, int64_t ldc, const T* bias) {
  constexpr int kRows = HWY_TARGET <= HWY_AVX3 ? 12 : 6;  // of 32 or 16 registers: two accumulators a row, two for B, one for the factor
  const int64_t row = a.transposed ? 1 : a.ld, depth = a.transposed ? a.ld : 1, step = 2 * lanes<T>();
  const int64_t panels = (b.n + kPanel<T> - 1) / kPanel<T>;
  parallel_for(panels, std::max<int64_t>(1, 65536 / (kPanel<T> * b.k * std::max<int64_t>(1, m / 4))), [&](int64_t begin, int64_t end) HWY_ATTR {
    for (int64_t panel = begin; panel < end; ++panel) {
      for (int64_t offset = 0; offset < kPanel<T> && panel * kPanel<T> + offset < b.n; offset += step) {
        const int64_t j = panel * kPanel<T> + offset, columns = b.n - j;
        const T* b_panel = b.data.get() + panel * kPanel<T> * b.k + offset;
        const Epilogue<T> out{beta, c + j, ldc, bias ? bias + j : nullptr};
        int64_t i = 0;
        for (; i + kRows <= m; i += kRows) tile<T, kRows>(b.k, a.data + i * row, row, depth, b_panel, columns, out, i);
        if (i < m) last_tile<T, kRows - 1>(m - i, b.k, a.data + i * row, row, depth, b_panel, columns, out, i);
      }
    }
  });
}

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

HWY_EXPORT(packed_gemm_f32);
HWY_EXPORT(packed_gemm_f64);

namespace cpu {

template <class T>
Packed<T> pack_panels(int64_t k, int64_t n, Matrix<T> b) {
  const int64_t panels = (n + kPanel<T> - 1) / kPanel<T>;
  const size_t bytes = static_cast<size_t>(panels * kPanel<T> * k) * sizeof(T);
  constexpr std::align_val_t alignment{static_cast<size_t>(kAlignment)};
  T* data = static_cast<T*>(::operator new(bytes, alignment));
  Packed<T> packed{k, n, std::shared_ptr<T>(data, [](T* p) { ::operator delete(p, alignment); })};
  parallel_for(panels, std::max<int64_t>(1, 32768 / (kPanel<T> * std::max<int64_t>(1, k))), [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t j = panel * kPanel<T>, width = std::min(kPanel<T>, n - j);
      T* target = data + j * k;
      for (int64_t p = 0; p < k; ++p, target += kPanel<T>) {
        for (int64_t s = 0; s < width; ++s) target[s] = b.transposed ? b.data[(j + s) * b.ld + p] : b.data[p * b.ld + j + s];
        std::fill(target + width, target + kPanel<T>, T(0));
      }
    }
  });
  return packed;
}
template Packed<float> pack_panels(int64_t, int64_t, Matrix<float>);
template Packed<double> pack_panels(int64_t, int64_t, Matrix<double>);

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
