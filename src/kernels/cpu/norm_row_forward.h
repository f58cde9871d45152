// The row normaliser forward, and how rows meet their affine parameters.
// Re-included once per instruction set, see simd.h.

#if defined(LAMINA_KERNELS_CPU_NORM_ROW_FORWARD_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LAMINA_KERNELS_CPU_NORM_ROW_FORWARD_H
#undef LAMINA_KERNELS_CPU_NORM_ROW_FORWARD_H
#else
#define LAMINA_KERNELS_CPU_NORM_ROW_FORWARD_H
#endif

#include <hwy/cache_control.h>
#include <lamina/core/parallel.h>

#include <algorithm>

#include "kernels/cpu/measure.h"
#include "kernels/cpu/norm_parts.h"
#include "kernels/cpu/simd.h"

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels::HWY_NAMESPACE {
namespace {

constexpr int64_t parallel_elements = 32768;  // less work than this stays on one thread

int64_t measured_width(const RowNorm& spec) { return spec.measured > 0 ? spec.measured : spec.width; }

// Whether gain and bias change along a row with every element (layer norm), or are constant over runs of affine_inner elements.
bool affine_by_element(const RowNorm& spec) { return spec.affine_count > 0 && spec.affine_inner == 1; }

// Calls f(begin, length, index) for the runs of columns of a row whose affine parameters are one entry `index`, or, by element, the contiguous
// entries from `index` on.
template <class F>
HWY_INLINE void for_each_run(const RowNorm& spec, int64_t row, F&& f) {
  if (spec.affine_count == 0 || (spec.affine_inner == 1 && spec.affine_count == spec.width)) return f(int64_t{0}, spec.width, int64_t{0});
  for (int64_t begin = 0; begin < spec.width;) {
    const int64_t element = row * spec.width + begin;
    const int64_t index = element / spec.affine_inner % spec.affine_count;
    const int64_t left = spec.affine_inner == 1 ? spec.affine_count - index : spec.affine_inner - element % spec.affine_inner;
    const int64_t length = std::min(left, spec.width - begin);
    f(begin, length, index);
    begin += length;
  }
}

// The longest run that one row's walk takes at once, see for_each_run.
int64_t run_length(const RowNorm& spec) {
  const int64_t period = affine_by_element(spec) ? spec.affine_count : spec.affine_inner;
  return spec.affine_count > 0 ? std::min(spec.width, period) : spec.width;
}

// Rows this short are taken in pairs, which share the loads of gain, bias and their gradients and hide each other's latencies.
template <class T>
bool in_pairs(const RowNorm& spec) {
  const int64_t row = spec.width * static_cast<int64_t>(sizeof(T));
  return row <= 4096 && spec.rows * row <= (int64_t{1} << 20);
}

// Whether a row uses the affine parameters in order and once, as in layer norm.
bool affine_by_row(const RowNorm& spec) { return spec.affine_inner == 1 && spec.affine_count == spec.width; }

// The pairs among rows [first, end): rows that begin equally far from an aligned vector, if there are enough of them, and else neighbours. (Vectors
// that straddle cache lines cost a fifth of the time of a norm in cache.)
template <class T>
struct Pairs {
  int64_t first, end, step;
  bool aligned;

  Pairs(const RowNorm& spec, int64_t first_row, int64_t last_row) : first(first_row), end(last_row) {
    const int64_t period = row_period<T>(spec.width);
    step = end - first >= 4 * period ? period : 1;
    aligned = step == period;
  }
  int64_t count() const { return (end - first + 2 * step - 1) / (2 * step) * step; }
  // The first row of pair k, whose other one is `step` further; either can lie past the end.
  int64_t row(int64_t k) const { return first + k / step * 2 * step + k % step; }
};

// y = x-hat gain + bias over n elements of several rows; gain_at(at) and bias_at(at) give vectors.
template <int kRows, template <class> class Whole, class T, class Gain, class Bias>
HWY_INLINE void normalise(int64_t head, int64_t n, const Statistics<T>* s, const T* const* x, Gain gain_at, Bias bias_at, T* const* y) {
  Vec<T> mean[kRows], rstd[kRows], offset[kRows];
  for (int r = 0; r < kRows; ++r) mean[r] = set(s[r].mean), rstd[r] = set(s[r].rstd), offset[r] = set(static_cast<T>(-s[r].shift * s[r].rstd));
  for_each_vector_after<T, Whole>(head, n, [&](auto at) HWY_ATTR {
    const Vec<T> gain = gain_at(at), bias = bias_at(at);
    for (int r = 0; r < kRows; ++r) {
      const Vec<T> xhat = hn::MulAdd(hn::Sub(at.load(x[r]), mean[r]), rstd[r], offset[r]);
      at.store_result(y[r], hn::MulAdd(xhat, gain, bias));
    }
  });
}

// The arrays of one row_forward call.
template <class T>
struct RowForward {
  const RowNorm& spec;
  const T *x, *gain, *bias;
  T *y, *mean, *rstd;
  const bool streamed = streams(y, (spec.rows * spec.width), run_length(spec));

  // Columns [begin, begin + n) of several rows, `head` of them before the first aligned vector.
  template <int kRows, class Gain, class Bias>
  HWY_INLINE void columns(const int64_t (&row)[kRows], int64_t begin, int64_t head, int64_t n, const Statistics<T>* s, Gain gain_at,
                          Bias bias_at) const {
    const T* xs[kRows];
    T* ys[kRows];
    for (int r = 0; r < kRows; ++r) xs[r] = x + row[r] * spec.width + begin, ys[r] = y + row[r] * spec.width + begin;
    if (kRows == 1 && streamed) return normalise<1, StreamedVector, T>(head, n, s, xs, gain_at, bias_at, ys);
    normalise<kRows, WholeVector, T>(head, n, s, xs, gain_at, bias_at, ys);
  }

  template <int kRows>
  void columns_by_element(const int64_t (&row)[kRows], int64_t begin, int64_t head, int64_t n, const Statistics<T>* s, int64_t index) const {
    const T *const g = gain ? gain + index : nullptr, *const b = bias ? bias + index : nullptr;
    const Vec<T> one = set(T{1}), none = zero<T>();
    columns(
        row, begin, head, n, s, [=](auto at) HWY_ATTR { return g ? at.load(g) : one; }, [=](auto at) HWY_ATTR { return b ? at.load(b) : none; });
  }

  void by_runs(int64_t row, const Statistics<T>& s) const {
    for_each_run(spec, row, [&](int64_t begin, int64_t length, int64_t index) HWY_ATTR {
      const int64_t at_row[1] = {row}, head = to_aligned<T>(row * spec.width + begin);
      if (affine_by_element(spec)) return columns_by_element(at_row, begin, head, length, &s, index);
      const bool affine = spec.affine_count > 0;
      const Vec<T> g = set(affine && gain ? gain[index] : T{1}), b = set(affine && bias ? bias[index] : T{0});
      columns(
          at_row, begin, head, length, &s, [=](auto) HWY_ATTR { return g; }, [=](auto) HWY_ATTR { return b; });
    });
  }

  template <int kRows>
  void rows(const int64_t (&row)[kRows], int64_t head) const {
    const T* xs[kRows];
    for (int r = 0; r < kRows; ++r) xs[r] = x + row[r] * spec.width;
    const auto s = measure_rows<kRows, T>(spec.centre, spec.eps, measured_width(spec), xs);
    for (size_t r = 0; r < kRows; ++r) {
      if (spec.centre) mean[row[r]] = s[r].mean, mean[spec.rows + row[r]] = s[r].shift;
      rstd[row[r]] = s[r].rstd;
    }
    if (affine_by_row(spec)) return columns_by_element(row, 0, head, spec.width, s.data(), 0);
    for (size_t r = 0; r < kRows; ++r) by_runs(row[r], s[r]);
  }

  void all() const {
    const int64_t grain = std::max<int64_t>(1, parallel_elements / std::max<int64_t>(spec.width, 1));
    if (in_pairs<T>(spec)) {
      const Pairs<T> pairs(spec, 0, spec.rows);
      parallel_for(pairs.count(), (grain + 1) / 2, [&](int64_t begin, int64_t end) {
        for (int64_t k = begin; k < end; ++k) {
          // Where there is no second row, the first one again, so that a row's bits do not depend on how many follow.
          const int64_t row = pairs.row(k), other = row + pairs.step;
          if (row < spec.rows) rows<2>({row, other < spec.rows ? other : row}, pairs.aligned ? to_aligned<T>(row * spec.width) : 0);
        }
      });
    } else {
      parallel_for(spec.rows, grain, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) rows<1>({row}, to_aligned<T>(row * spec.width));
        hwy::FlushStream();
      });
    }
  }
};

}  // namespace
}  // namespace lamina::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LAMINA_KERNELS_CPU_NORM_ROW_FORWARD_H
