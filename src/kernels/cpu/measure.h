// The statistics of a row. Re-included once per instruction set, see simd.h.

#if defined(LAMINA_KERNELS_CPU_MEASURE_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LAMINA_KERNELS_CPU_MEASURE_H
#undef LAMINA_KERNELS_CPU_MEASURE_H
#else
#define LAMINA_KERNELS_CPU_MEASURE_H
#endif

#include "kernels/cpu/norm_parts.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/sums.h"

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels::HWY_NAMESPACE {

// Sums of d and d^2 with d = x - origin, over [0, n).
template <class T>
HWY_INLINE std::array<double, 2> moments_about(T origin_value, int64_t n, const T* x) {
  const Vec<T> origin = set(origin_value);
  const int64_t step = lanes<T>();
  std::array<double, 2> totals{};
  for (int64_t begin = 0; begin < n; begin += sum_chunk) {
    const int64_t end = std::min(n, begin + sum_chunk);
    Vec<T> sum[4], square[4];
    for (int u = 0; u < 4; ++u) sum[u] = square[u] = zero<T>();
    const auto add = [&](int u, Vec<T> d) HWY_ATTR {
      sum[u] = hn::Add(sum[u], d);
      square[u] = hn::MulAdd(d, d, square[u]);
    };
    int64_t i = begin;
    for (; i + 4 * step <= end; i += 4 * step)
      for (int u = 0; u < 4; ++u) add(u, hn::Sub(load(x + i + u * step), origin));
    for (; i + step <= end; i += step) add(0, hn::Sub(load(x + i), origin));
    if (i < end) {
      const PartialVector<T> at{i, end - i};
      add(3, at.keep(hn::Sub(at.load(x), origin)));
    }
    totals[0] += static_cast<double>(sum_lanes<T>(hn::Add(hn::Add(sum[0], sum[1]), hn::Add(sum[2], sum[3]))));
    totals[1] += static_cast<double>(sum_lanes<T>(hn::Add(hn::Add(square[0], square[1]), hn::Add(square[2], square[3]))));
  }
  return totals;
}

// Statistics of the n measured entries of a row.
template <class T>
Statistics<T> measure(bool centre, double eps, int64_t n, const T* x) {
  Statistics<T> result;
  if (n == 0) return result;
  const double count = static_cast<double>(n);
  double var = 0;
  if (centre) {
    // Moments about the mean of the first few values, so that a large offset costs nothing and a constant row is exact. Where that origin turns out
    // to lie more than half a deviation from the mean, sums and squares have lost digits: a second pass about the mean itself gets them back.
    T origin = n < lanes<T>() ? x[0] : sum_lanes<T>(load(x)) / static_cast<T>(lanes<T>());
    for (int pass = 0; pass < 2; ++pass) {
      const auto [sum, squares] = moments_about(origin, n, x);
      const double offset = sum / count;
      result.mean = static_cast<T>(static_cast<double>(origin) + offset);
      result.shift = static_cast<T>(static_cast<double>(origin) - static_cast<double>(result.mean) + offset);
      var = squares / count - offset * offset;
      if (var < 0) var = 0;  // rounding; a NaN stays
      if (!(offset * offset > var / 4)) break;
      origin = result.mean;
    }
  } else {
    var = sums<T, 1>(n,
                     [&](auto at) HWY_ATTR {
                       const Vec<T> v = at.load(x);
                       return Terms<T, 1>{{hn::Mul(v, v)}};
                     })[0] /
          count;
  }
  if (!trustworthy<T>(var, eps))
    return scaled_statistics<T>(centre, eps, count, count, [=](auto&& f) {
      for (int64_t i = 0; i < n; ++i) f(x[i]);
    });
  result.rstd = rstd_of<T>(var, eps);
  return result;
}

}  // namespace lamina::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LAMINA_KERNELS_CPU_MEASURE_H
