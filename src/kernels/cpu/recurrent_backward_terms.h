// Included once per SIMD target (see simd.h): what backward does to the summed inputs of any recurrent cell.

#if defined(LAMINA_KERNELS_CPU_RECURRENT_BACKWARD_TERMS_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LAMINA_KERNELS_CPU_RECURRENT_BACKWARD_TERMS_H
#undef LAMINA_KERNELS_CPU_RECURRENT_BACKWARD_TERMS_H
#else
#define LAMINA_KERNELS_CPU_RECURRENT_BACKWARD_TERMS_H
#endif

#include <hwy/cache_control.h>

#include "kernels/cpu/recurrent_simd.h"

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels::HWY_NAMESPACE {
namespace {

/// One sequence's rows at a step. pre_x and pre_h: gradients of the summed inputs outside and inside the product with GRU's r (one array else); da_x
/// and da_h, which may be the same arrays: those of a_x and a_h.
template <class T>
struct BackwardRow {
  const T *a_x, *a_h, *gates, *raw_c, *y, *n_term, *statistics, *c_before, *h_before, *statistics_before, *dy;
  T *dh, *dc, *pre_x, *pre_h, *da_x, *da_h;
};

/// What is 1 - v^2 and v (1 - v) to tanh and the logistic function.
template <class V>
HWY_INLINE V tanh_slope(V v) {
  return hn::NegMulAdd(v, v, constant<V>(1));
}
template <class V>
HWY_INLINE V sigmoid_slope(V v) {
  return hn::NegMulAdd(v, v, v);
}

/// The next group of rows comes from far away, in runs too short for the processor to foresee.
template <class T, class At>
HWY_INLINE void fetch_next(const T* p, int64_t width, At at) {
  hwy::Prefetch(p + kGroup * width + at.index);
}
/// The same of gates or summed inputs, into the second cache: in the first, one group of rows and the arrays of its gradients leave no room.
template <class T, class At>
HWY_INLINE void fetch_next_gates(const T* p, int64_t width, At at) {
  __builtin_prefetch(p + kGroup * width + at.index, 0, 2);
}

// Through a normaliser of a run of a row: pre is the gradient of x-hat gain + bias. a and a-hat below: pre gain, and its product with x-hat.
template <class T>
struct NormTerm {
  NormTerm() = default;
  NormTerm(const T* values, const T* gradient, const T* numbers) : x(values), pre(gradient), statistics(numbers) {}

  HWY_INLINE Normaliser<T> x_hat() const { return Normaliser<T>(statistics); }
  template <class At>
  HWY_INLINE Two<Vec<T>> terms(At at, Vec<T> pre_at, Vec<T> gain) const {
    const Vec<T> a = hn::Mul(pre_at, gain);
    return {a, hn::Mul(a, x_hat()(at.load(x)))};
  }
  void finish_sums(bool centre, int64_t n, double sum_a, double sum_a_hat) {
    mean = static_cast<T>(centre ? sum_a / static_cast<double>(n) : 0);
    mean_hat = static_cast<T>(sum_a_hat / static_cast<double>(n));
  }
  /// The gradient of x; dgain grows.
  template <class At>
  HWY_INLINE Vec<T> gradient(At at, Vec<T> pre_at, Vec<T> gain, Vec<T>& dgain) const {
    const Vec<T> normal = x_hat()(at.load(x));
    dgain = hn::MulAdd(pre_at, normal, dgain);
    return hn::Mul(set(statistics[1]), hn::NegMulAdd(normal, set(mean_hat), hn::MulSub(pre_at, gain, set(mean))));
  }

  const T *x = nullptr, *pre = nullptr, *statistics = nullptr;
  T mean = 0, mean_hat = 0;
};

/// The two terms of a segment of kRows rows; h only of TermNorm::terms.
template <class T, int kRows>
struct SegmentTerms {
  NormTerm<T> x[kRows], h[kRows];
};

template <class T, Cell cell, TermNorm norm>
void set_terms(const RecurrentBackward<T>& work, const BackwardRow<T>& row, int segment, NormTerm<T>& x, NormTerm<T>& h) {
  using S = Segments<cell, norm>;
  const int64_t begin = S::first(segment) * work.spec.hidden;
  x = NormTerm<T>(row.a_x + begin, row.pre_x + begin, row.statistics + 3 * segment);
  if constexpr (norm == TermNorm::terms) h = NormTerm<T>(row.a_h + begin, row.pre_h + begin, row.statistics + 3 * (S::count + segment));
}

// One segment of kRows rows: from the gradients of the summed inputs to those of a_x and a_h; the sums of the bias and the gains grow.
template <class T, Cell cell, TermNorm norm, int kRows>
void segment_gradient(const RecurrentBackward<T>& work, const BackwardRow<T>* rows, T* sums, int segment, const SegmentTerms<T, kRows>& terms) {
  using S = Segments<cell, norm>;
  constexpr bool two = norm == TermNorm::terms, from_afar = cell != Cell::lstm;
  const int64_t hidden = work.spec.hidden, begin = S::first(segment) * hidden, n = S::size(segment) * hidden;
  const RecurrentSums at_sum(work.spec);
  const T* const gain_x = (two ? work.parts.gain_ih : work.parts.gain_hh) + begin;
  const T* const gain_h = work.parts.gain_hh + begin;
  T* const dbias = sums ? sums + at_sum.bias + begin : nullptr;
  T* const dgain_x = sums ? sums + (two ? at_sum.gain_ih : at_sum.gain_hh) + begin : nullptr;
  T* const dgain_h = sums ? sums + at_sum.gain_hh + begin : nullptr;
  for_each_vector<T>(n, [&](auto at) HWY_ATTR {
    const Vec<T> gx = at.load(gain_x), gh = at.load(gain_h);
    Vec<T> sum = sums ? at.load(dbias) : zero<T>(), sum_x = sums ? at.load(dgain_x) : zero<T>(), sum_h = sums && two ? at.load(dgain_h) : zero<T>();
    // All are read before anything is written: rows are often a multiple of 4 KiB apart, where a load waits for a store that it has nothing to do
    // with.
    Vec<T> pre[kRows];
    for (int r = 0; r < kRows; ++r) pre[r] = at.load(terms.x[r].pre);
    for (int r = 0; r < kRows; ++r) {
      const NormTerm<T>&x = terms.x[r], &h = terms.h[r];
      const Vec<T> pre_x = pre[r], pre_h = cell == Cell::gru ? at.load(h.pre) : pre_x;
      sum = hn::Add(sum, pre_x);
      if (from_afar) fetch_next_gates(x.x, S::gates * hidden, at);
      if (from_afar && two) fetch_next_gates(h.x, S::gates * hidden, at);
      at.store(rows[r].da_x + begin, x.gradient(at, pre_x, gx, sum_x));
      if constexpr (two) at.store(rows[r].da_h + begin, h.gradient(at, pre_h, gh, sum_h));
    }
    if (!sums) return;
    at.store(dbias, sum);
    at.store(dgain_x, sum_x);
    if (two) at.store(dgain_h, sum_h);
  });
}

// The same where the sums over rows are not known. (An LSTM has them from its gates.)
template <class T, Cell cell, TermNorm norm, int kRows>
void segment_backward(const RecurrentBackward<T>& work, const BackwardRow<T>* rows, T* sums, int segment) {
  using S = Segments<cell, norm>;
  constexpr bool two = norm == TermNorm::terms;
  const int64_t begin = S::first(segment) * work.spec.hidden, n = S::size(segment) * work.spec.hidden;
  const T* const gain_x = (two ? work.parts.gain_ih : work.parts.gain_hh) + begin;
  const T* const gain_h = work.parts.gain_hh + begin;
  SegmentTerms<T, kRows> terms;
  for (int r = 0; r < kRows; ++r) set_terms<T, cell, norm>(work, rows[r], segment, terms.x[r], terms.h[r]);
  constexpr int K = two ? 4 : 2;
  const auto totals = row_sums<kRows, K, T>(n, [&](auto at, int r) HWY_ATTR {
    const Vec<T> pre_x = at.load(terms.x[r].pre);
    const Two<Vec<T>> a = terms.x[r].terms(at, pre_x, at.load(gain_x));
    if constexpr (two) {
      const Two<Vec<T>> b = terms.h[r].terms(at, cell == Cell::gru ? at.load(terms.h[r].pre) : pre_x, at.load(gain_h));
      return Terms<T, K>{{a.first, a.second, b.first, b.second}};
    } else {
      return Terms<T, K>{{a.first, a.second}};
    }
  });
  for (int r = 0; r < kRows; ++r) {
    const auto& t = totals[static_cast<size_t>(r)];
    terms.x[r].finish_sums(work.spec.centre, n, t[0], t[1]);
    if constexpr (two) terms.h[r].finish_sums(work.spec.centre, n, t[2], t[3]);
  }
  segment_gradient<T, cell, norm, kRows>(work, rows, sums, segment, terms);
}

/// target += the sum of the rows' f(row)[at] over n elements.
template <int kRows, class T, class F>
HWY_INLINE void add_rows(T* target, int64_t n, F&& f) {
  for_each_vector<T>(n, [&](auto at) HWY_ATTR {
    Vec<T> total = at.load(target);
    for (int r = 0; r < kRows; ++r) total = hn::Add(total, at.load(f(r)));
    at.store(target, total);
  });
}

template <class T, Cell cell, TermNorm norm, int kRows>
void some_terms_backward(const RecurrentBackward<T>& work, const BackwardRow<T>* rows, T* sums) {
  using S = Segments<cell, norm>;
  const int64_t hidden = work.spec.hidden;
  const RecurrentSums at_sum(work.spec);
  constexpr bool normalised = norm == TermNorm::terms || norm == TermNorm::gates;
  if (sums) {
    if (!normalised) add_rows<kRows>(sums + at_sum.bias, S::gates * hidden, [&](int r) { return rows[r].pre_x; });
    if (cell == Cell::gru) add_rows<kRows>(sums + at_sum.n_bias, hidden, [&](int r) { return rows[r].pre_h + 2 * hidden; });
  }
  if constexpr (normalised)
    for (int s = 0; s < S::count; ++s) segment_backward<T, cell, norm, kRows>(work, rows, sums, s);
}

// From the gradients of the summed inputs to those of a_x and a_h, and the sums of biases and gains. Rows are added one after the other, whether they
// come as a group or alone.
template <class T, Cell cell, TermNorm norm>
void terms_backward(const RecurrentBackward<T>& work, const BackwardRow<T>* rows, int count, T* sums) {
  if (count == kGroup) return some_terms_backward<T, cell, norm, kGroup>(work, rows, sums);
  for (int i = 0; i < count; ++i) some_terms_backward<T, cell, norm, 1>(work, rows + i, sums);
}

}  // namespace
}  // namespace lamina::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LAMINA_KERNELS_CPU_RECURRENT_BACKWARD_TERMS_H
