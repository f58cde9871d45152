// The row normaliser forward, and how rows meet their affine parameters.
// Re-included once per instruction set, see simd.h.

#if defined(LAMINA_KERNELS_CPU_NORM_ROW_FORWARD_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LAMINA_KERNELS_CPU_NORM_ROW_FORWARD_H
#undef LAMINA_KERNELS_CPU_NORM_ROW_FORWARD_H
#else
#define LAMINA_KERNELS_CPU_NORM_ROW_FORWARD_H
#endif

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

// Rows this short are taken in pairs, which share the loads of gain, bias and their gradients and hide each other's latencies.
template <class T>
bool in_pairs(const RowNorm& spec) {
  const int64_t row = spec.width * static_cast<int64_t>(sizeof(T));
  return row <= 4096 && spec.rows * row <= (int64_t{1} << 20);
}

// Whether a row uses the affine parameters in order and once, as in layer norm.
bool affine_by_row(const RowNorm& spec) { return spec.affine_inner == 1 && spec.affine_count == spec.width; }

// y = x-hat gain + bias over n elements of several rows; gain_at(at) and bias_at(at) give vectors.
template <int kRows, class T, class Gain, class Bias>
HWY_INLINE void normalise(int64_t n, const Statistics<T>* s, const T* const* x, Gain gain_at, Bias bias_at, T* const* y) {
  Vec<T> mean[kRows], rstd[kRows], offset[kRows];
  for (int r = 0; r < kRows; ++r) mean[r] = set(s[r].mean), rstd[r] = set(s[r].rstd), offset[r] = set(static_cast<T>(-s[r].shift * s[r].rstd));
  for_each_vector<T>(n, [&](auto at) HWY_ATTR {
    const Vec<T> gain = gain_at(at), bias = bias_at(at);
    for (int r = 0; r < kRows; ++r) {
      const Vec<T> xhat = hn::MulAdd(hn::Sub(at.load(x[r]), mean[r]), rstd[r], offset[r]);
      at.store(y[r], hn::MulAdd(xhat, gain, bias));
    }
  });
}

// The same for gains and biases by element.
template <int kRows, class T>
HWY_INLINE void normalise_by_element(int64_t n, const Statistics<T>* s, const T* const* x, const T* gain, const T* bias, T* const* y) {
  const Vec<T> one = set(T{1}), none = zero<T>();
  normalise<kRows, T>(
      n, s, x, [=](auto at) HWY_ATTR { return gain ? at.load(gain) : one; }, [=](auto at) HWY_ATTR { return bias ? at.load(bias) : none; }, y);
}

// The arrays of one row_forward call.
template <class T>
struct RowForward {
  const RowNorm& spec;
  const T *x, *gain, *bias;
  T *y, *mean, *rstd;

  void by_runs(int64_t row, const Statistics<T>& s) const {
    for_each_run(spec, row, [&](int64_t begin, int64_t length, int64_t index) HWY_ATTR {
      const T* const xs[1] = {x + row * spec.width + begin};
      T* const ys[1] = {y + row * spec.width + begin};
      if (affine_by_element(spec))
        return normalise_by_element<1, T>(length, &s, xs, gain ? gain + index : nullptr, bias ? bias + index : nullptr, ys);
      const bool affine = spec.affine_count > 0;
      const Vec<T> g = set(affine && gain ? gain[index] : T{1}), b = set(affine && bias ? bias[index] : T{0});
      normalise<1, T>(
          length, &s, xs, [=](auto) HWY_ATTR { return g; }, [=](auto) HWY_ATTR { return b; }, ys);
    });
  }

  // Rows from `first` on; where there are no more, the last one again, so that a row's bits do not depend on how many follow.
  template <int kRows>
  void rows(int64_t first) const {
    const T* xs[kRows];
    T* ys[kRows];
    int64_t row[kRows];
    for (int r = 0; r < kRows; ++r) {
      row[r] = std::min(first + r, spec.rows - 1);
      xs[r] = x + row[r] * spec.width;
      ys[r] = y + row[r] * spec.width;
    }
    const auto s = measure_rows<kRows, T>(spec.centre, spec.eps, measured_width(spec), xs);
    for (size_t r = 0; r < kRows; ++r) {
      if (spec.centre) mean[row[r]] = s[r].mean;
      rstd[row[r]] = s[r].rstd;
    }
    if (affine_by_row(spec)) return normalise_by_element<kRows, T>(spec.width, s.data(), xs, gain, bias, ys);
    for (size_t r = 0; r < kRows; ++r) by_runs(row[r], s[r]);
  }

  void all() const {
    const int64_t grain = std::max<int64_t>(1, parallel_elements / std::max<int64_t>(spec.width, 1));
    if (in_pairs<T>(spec)) {
      parallel_for((spec.rows + 1) / 2, (grain + 1) / 2, [&](int64_t begin, int64_t end) {
        for (int64_t pair = begin; pair < end; ++pair) rows<2>(2 * pair);
      });
    } else {
      parallel_for(spec.rows, grain, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) rows<1>(row);
      });
    }
  }
};

}  // namespace
}  // namespace lamina::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LAMINA_KERNELS_CPU_NORM_ROW_FORWARD_H
