// The statistics of a row. Re-included once per instruction set, see simd.h.

#if defined(LAMINA_KERNELS_CPU_MEASURE_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LAMINA_KERNELS_CPU_MEASURE_H
#undef LAMINA_KERNELS_CPU_MEASURE_H
#else
#define LAMINA_KERNELS_CPU_MEASURE_H
#endif

#include <array>

#include "kernels/cpu/norm_parts.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/sums.h"

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels::HWY_NAMESPACE {

// Sums of d and d^2 with d = x - origin over [0, n), of several rows side by side: {sums, squares}.
template <int kRows, class T>
HWY_INLINE std::array<std::array<double, kRows>, 2> moments_about(const T (&origins)[kRows], int64_t n, const T* const (&x)[kRows]) {
  constexpr int unroll = kRows >= 4 ? 1 : 4 / kRows;                                  // independent chains of additions
  const int64_t step = lanes<T>(), chunk = std::min(sum_chunk, 256 * unroll * step);  // no chain is longer than 256, however short vectors are
  std::array<std::array<double, kRows>, 2> totals{};
  Vec<T> origin[kRows];
  for (int r = 0; r < kRows; ++r) origin[r] = set(origins[r]);
  for (int64_t begin = 0; begin < n; begin += chunk) {
    const int64_t end = std::min(n, begin + chunk);
    Vec<T> sum[kRows][unroll], square[kRows][unroll];
    for (int r = 0; r < kRows; ++r)
      for (int u = 0; u < unroll; ++u) sum[r][u] = square[r][u] = zero<T>();
    const auto add = [&](int r, int u, Vec<T> d) HWY_ATTR {
      sum[r][u] = hn::Add(sum[r][u], d);
      square[r][u] = hn::MulAdd(d, d, square[r][u]);
    };
    int64_t i = begin;
    for (; i + unroll * step <= end; i += unroll * step)
      for (int r = 0; r < kRows; ++r)
        for (int u = 0; u < unroll; ++u) add(r, u, hn::Sub(load(x[r] + i + u * step), origin[r]));
    for (; i + step <= end; i += step)
      for (int r = 0; r < kRows; ++r) add(r, 0, hn::Sub(load(x[r] + i), origin[r]));
    if (i < end) {
      const PartialVector<T> at{i, end - i};
      for (int r = 0; r < kRows; ++r) add(r, 0, at.keep(hn::Sub(at.load(x[r]), origin[r])));
    }
    for (int r = 0; r < kRows; ++r) {
      for (int u = 1; u < unroll; ++u) {
        sum[r][0] = hn::Add(sum[r][0], sum[r][u]);
        square[r][0] = hn::Add(square[r][0], square[r][u]);
      }
      totals[0][static_cast<size_t>(r)] += static_cast<double>(sum_lanes<T>(sum[r][0]));
      totals[1][static_cast<size_t>(r)] += static_cast<double>(sum_lanes<T>(square[r][0]));
    }
  }
  return totals;
}

// The statistics of a row of which the moments about an origin are known; var receives the variance.
template <class T>
Statistics<T> about(T origin, double sum, double squares, double count, double* var) {
  const double offset = sum / count;
  Statistics<T> result;
  result.mean = static_cast<T>(static_cast<double>(origin) + offset);
  result.shift = static_cast<T>(static_cast<double>(origin) - static_cast<double>(result.mean) + offset);
  *var = squares / count - offset * offset;
  if (*var < 0) *var = 0;  // rounding; a NaN stays
  return result;
}

// The last of it: 1/std, or everything anew where squares overflowed or vanished.
template <class T>
Statistics<T> finished(Statistics<T> s, double var, bool centre, double eps, int64_t n, const T* x) {
  if (!trustworthy<T>(var, eps)) {
    const double count = static_cast<double>(n);
    return scaled_statistics<T>(centre, eps, count, count, [=](auto&& f) {
      for (int64_t i = 0; i < n; ++i) f(x[i]);
    });
  }
  s.rstd = rstd_of<T>(var, eps);
  return s;
}

// Statistics of the n measured entries of several rows. Side by side they hide each other's latencies; a row's result does not depend on its company.
template <int kRows, class T>
std::array<Statistics<T>, kRows> measure_rows(bool centre, double eps, int64_t n, const T* const (&x)[kRows]) {
  std::array<Statistics<T>, kRows> result;
  if (n == 0) return result;
  const double count = static_cast<double>(n);
  if (!centre) {
    for (int r = 0; r < kRows; ++r) {
      const auto squares = sums<T, 1>(n, [&](auto at) HWY_ATTR {
        const Vec<T> v = at.load(x[r]);
        return Terms<T, 1>{{hn::Mul(v, v)}};
      });
      result[static_cast<size_t>(r)] = finished(Statistics<T>(), squares[0] / count, centre, eps, n, x[r]);
    }
    return result;
  }
  // Moments about the mean of the first few values, so that a large offset costs nothing and a constant row is exact. Where that origin turns out to
  // lie more than half a deviation from the mean, sums and squares have lost digits: a second pass about the mean itself gets them back.
  T origins[kRows];
  for (int r = 0; r < kRows; ++r) origins[r] = n < lanes<T>() ? x[r][0] : sum_lanes<T>(load(x[r])) / static_cast<T>(lanes<T>());
  const auto moments = moments_about<kRows, T>(origins, n, x);
  for (size_t r = 0; r < kRows; ++r) {
    double var = 0;
    Statistics<T> s = about(origins[r], moments[0][r], moments[1][r], count, &var);
    const double offset = moments[0][r] / count;
    if (offset * offset > var / 4) {
      const T origin[1] = {s.mean};
      const T* const row[1] = {x[r]};
      const auto again = moments_about<1, T>(origin, n, row);
      s = about(origin[0], again[0][0], again[1][0], count, &var);
    }
    result[r] = finished(s, var, centre, eps, n, x[r]);
  }
  return result;
}

template <class T>
Statistics<T> measure(bool centre, double eps, int64_t n, const T* x) {
  const T* const row[1] = {x};
  return measure_rows<1, T>(centre, eps, n, row)[0];
}

}  // namespace lamina::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LAMINA_KERNELS_CPU_MEASURE_H
