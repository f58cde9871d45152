// The statistics of a row, in two passes. Re-included once per instruction set, see simd.h.

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

// Statistics of the n measured entries of a row.
template <class T>
Statistics<T> measure(bool centre, double eps, int64_t n, const T* x) {
  Statistics<T> result;
  if (n == 0) return result;
  const double count = static_cast<double>(n);
  double var = 0;
  if (centre) {
    // The first entry as origin keeps the first sum small at a large offset and makes constant rows exact.
    const Vec<T> origin = set(x[0]);
    const double offset = sums<T, 1>(n, [&](auto at) HWY_ATTR { return Terms<T, 1>{{hn::Sub(at.load(x), origin)}}; })[0];
    const T first_mean = static_cast<T>(static_cast<double>(x[0]) + offset / count);
    const Vec<T> centre_at = set(first_mean);
    const auto moments = sums<T, 2>(n, [&](auto at) HWY_ATTR {
      const Vec<T> d = hn::Sub(at.load(x), centre_at);
      return Terms<T, 2>{{d, hn::Mul(d, d)}};
    });
    const double residual = moments[0] / count;
    result.mean = static_cast<T>(static_cast<double>(first_mean) + residual);
    result.shift = static_cast<T>(static_cast<double>(first_mean) - static_cast<double>(result.mean) + residual);
    var = moments[1] / count - residual * residual;
    if (var < 0) var = 0;  // rounding; a NaN stays
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
