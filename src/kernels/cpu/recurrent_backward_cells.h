// Included once per SIMD target (see simd.h): the cells of a recurrent layer, backward.

#if defined(LAMINA_KERNELS_CPU_RECURRENT_BACKWARD_CELLS_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LAMINA_KERNELS_CPU_RECURRENT_BACKWARD_CELLS_H
#undef LAMINA_KERNELS_CPU_RECURRENT_BACKWARD_CELLS_H
#else
#define LAMINA_KERNELS_CPU_RECURRENT_BACKWARD_CELLS_H
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

// The columns [begin, begin + n), one segment, of kRows rows: from the gradients of the summed inputs to those of a_x and a_h; the sums of the bias
// and the gains grow.
template <class T, Cell cell, TermNorm norm, int kRows>
void segment_backward(const RecurrentBackward<T>& work, const BackwardRow<T>* rows, T* sums, int segment) {
  using S = Segments<cell, norm>;
  constexpr bool two = norm == TermNorm::terms;
  const int64_t hidden = work.spec.hidden, begin = S::first(segment) * hidden, n = S::size(segment) * hidden;
  const RecurrentSums at_sum(work.spec);
  const T* const gain_x = (two ? work.parts.gain_ih : work.parts.gain_hh) + begin;
  const T* const gain_h = work.parts.gain_hh + begin;
  NormTerm<T> x[kRows], h[kRows];
  for (int r = 0; r < kRows; ++r) {
    x[r] = NormTerm<T>(rows[r].a_x + begin, rows[r].pre_x + begin, rows[r].statistics + 3 * segment);
    if constexpr (two) h[r] = NormTerm<T>(rows[r].a_h + begin, rows[r].pre_h + begin, rows[r].statistics + 3 * (S::count + segment));
  }
  constexpr int K = two ? 4 : 2;
  const auto totals = row_sums<kRows, K, T>(n, [&](auto at, int r) HWY_ATTR {
    const Vec<T> pre_x = at.load(x[r].pre);
    const Two<Vec<T>> a = x[r].terms(at, pre_x, at.load(gain_x));
    if constexpr (two) {
      const Two<Vec<T>> b = h[r].terms(at, cell == Cell::gru ? at.load(h[r].pre) : pre_x, at.load(gain_h));
      return Terms<T, K>{{a.first, a.second, b.first, b.second}};
    } else {
      return Terms<T, K>{{a.first, a.second}};
    }
  });
  for (int r = 0; r < kRows; ++r) {
    const auto& t = totals[static_cast<size_t>(r)];
    x[r].finish_sums(work.spec.centre, n, t[0], t[1]);
    if constexpr (two) h[r].finish_sums(work.spec.centre, n, t[2], t[3]);
  }
  T* const dbias = sums ? sums + at_sum.bias + begin : nullptr;
  T* const dgain_x = sums ? sums + (two ? at_sum.gain_ih : at_sum.gain_hh) + begin : nullptr;
  T* const dgain_h = sums ? sums + at_sum.gain_hh + begin : nullptr;
  for_each_vector<T>(n, [&](auto at) HWY_ATTR {
    const Vec<T> gx = at.load(gain_x), gh = at.load(gain_h);
    Vec<T> sum = sums ? at.load(dbias) : zero<T>(), sum_x = sums ? at.load(dgain_x) : zero<T>(), sum_h = sums && two ? at.load(dgain_h) : zero<T>();
    for (int r = 0; r < kRows; ++r) {
      const Vec<T> pre_x = at.load(x[r].pre), pre_h = cell == Cell::gru ? at.load(h[r].pre) : pre_x;
      sum = hn::Add(sum, pre_x);
      fetch_next(x[r].x, S::gates * hidden, at);
      if (two) fetch_next(h[r].x, S::gates * hidden, at);
      at.store(rows[r].da_x + begin, x[r].gradient(at, pre_x, gx, sum_x));
      if constexpr (two) at.store(rows[r].da_h + begin, h[r].gradient(at, pre_h, gh, sum_h));
    }
    if (!sums) return;
    at.store(dbias, sum);
    at.store(dgain_x, sum_x);
    if (two) at.store(dgain_h, sum_h);
  });
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

// Gives the gradient of tanh's argument k, and writes that of o into pre_x.
template <class T, class At>
HWY_INLINE Vec<T> argument_gradient(const BackwardRow<T>& r, int64_t hidden, At at, Vec<T> k) {
  fetch_next(r.gates + 3 * hidden, 4 * hidden, at);
  fetch_next(r.raw_c, hidden, at);
  fetch_next(r.dy, hidden, at);
  const Vec<T> t = tanh(k), o = at.load(r.gates + 3 * hidden), dh = hn::Add(at.load(r.dy), at.load(r.dh));
  at.store(r.pre_x + 3 * hidden, hn::Mul(hn::Mul(dh, t), sigmoid_slope(o)));
  return hn::Mul(hn::Mul(dh, o), tanh_slope(t));
}

// From the gradient of c, dc_at(at), to those of i, f, g (in pre_x) and of the c before (in dc).
template <class T, class Gradient>
HWY_INLINE void lstm_gates_backward(const RecurrentBackward<T>& work, const BackwardRow<T>& r, Gradient dc_at) {
  const int64_t hidden = work.spec.hidden;
  const auto finish = [&](auto before) HWY_ATTR {
    for_each_vector<T>(hidden, [&](auto at) HWY_ATTR {
      for (int gate = 0; gate < 3; ++gate) fetch_next(r.gates + gate * hidden, 4 * hidden, at);
      const Vec<T> dc = dc_at(at), i = at.load(r.gates), f = at.load(r.gates + hidden), g = at.load(r.gates + 2 * hidden);
      at.store(r.pre_x, hn::Mul(hn::Mul(dc, g), sigmoid_slope(i)));
      at.store(r.pre_x + hidden, hn::Mul(hn::Mul(dc, before(at)), sigmoid_slope(f)));
      at.store(r.pre_x + 2 * hidden, hn::Mul(hn::Mul(dc, i), tanh_slope(g)));
      at.store(r.dc, hn::Mul(dc, f));
    });
  };
  if (!r.statistics_before) return finish([&](auto at) HWY_ATTR { return at.load(r.c_before); });
  const Normaliser<T> x_hat(r.statistics_before);
  finish([&](auto at) HWY_ATTR { return hn::MulAdd(x_hat(at.load(r.c_before)), at.load(work.parts.gain_c), at.load(work.parts.bias_c)); });
}

template <class T>
void plain_lstm_row(const RecurrentBackward<T>& work, const BackwardRow<T>& r) {
  const int64_t hidden = work.spec.hidden;
  lstm_gates_backward<T>(work, r, [&](auto at) HWY_ATTR { return hn::Add(at.load(r.dc), argument_gradient(r, hidden, at, at.load(r.raw_c))); });
}

// With K over the row. dk, the gradient of K(c), passes through dh.
template <class T>
void normalised_lstm_row(const RecurrentBackward<T>& work, const BackwardRow<T>& r, T* sums) {
  const int64_t hidden = work.spec.hidden;
  const bool carry = work.spec.carry;
  const RecurrentSums at_sum(work.spec);
  const T *const gain = work.parts.gain_c, *const bias = work.parts.bias_c;
  NormTerm<T> term(r.raw_c, r.dh, r.statistics + work.spec.statistics() - 3);
  const auto totals = lamina::kernels::HWY_NAMESPACE::sums<T, 2>(hidden, [&](auto at) HWY_ATTR {
    const Vec<T> normal = term.x_hat()(at.load(r.raw_c)), gain_at = at.load(gain);
    Vec<T> dk = argument_gradient(r, hidden, at, hn::MulAdd(normal, gain_at, at.load(bias)));
    if (carry) dk = hn::Add(dk, at.load(r.dc));
    at.store(r.dh, dk);
    const Vec<T> a = hn::Mul(dk, gain_at);
    return Terms<T, 2>{{a, hn::Mul(a, normal)}};
  });
  term.finish_sums(work.spec.centre, hidden, totals[0], totals[1]);
  T *const dgain = sums ? sums + at_sum.gain_c : nullptr, *const dbias = sums ? sums + at_sum.bias_c : nullptr;
  lstm_gates_backward<T>(work, r, [&](auto at) HWY_ATTR {
    const Vec<T> dk = at.load(r.dh);
    Vec<T> gain_sum = sums ? at.load(dgain) : zero<T>();
    const Vec<T> dc = term.gradient(at, dk, at.load(gain), gain_sum);
    if (sums) {
      at.store(dgain, gain_sum);
      at.store(dbias, hn::Add(at.load(dbias), dk));
    }
    return carry ? dc : hn::Add(dc, at.load(r.dc));
  });
}

template <class T, TermNorm norm>
void lstm_group(const RecurrentBackward<T>& work, const BackwardRow<T>* rows, int count, T* sums) {
  for (int i = 0; i < count; ++i) work.spec.normalise_c ? normalised_lstm_row<T>(work, rows[i], sums) : plain_lstm_row<T>(work, rows[i]);
  terms_backward<T, Cell::lstm, norm>(work, rows, count, sums);
}

template <class T, TermNorm norm>
void gru_row(const RecurrentBackward<T>& work, const BackwardRow<T>& r) {
  const int64_t hidden = work.spec.hidden;
  const auto finish = [&](auto inside_at) HWY_ATTR {
    for_each_vector<T>(hidden, [&](auto at) HWY_ATTR {
      const Vec<T> reset = at.load(r.gates), z = at.load(r.gates + hidden), n = at.load(r.gates + 2 * hidden);
      const Vec<T> dh = hn::Add(at.load(r.dy), at.load(r.dh));
      const Vec<T> dn = hn::Mul(hn::Mul(dh, hn::Sub(set(T{1}), z)), tanh_slope(n));
      const Vec<T> dr = hn::Mul(hn::Mul(dn, inside_at(at)), sigmoid_slope(reset));
      const Vec<T> dz = hn::Mul(hn::Mul(dh, hn::Sub(at.load(r.h_before), n)), sigmoid_slope(z));
      at.store(r.pre_x, dr);
      at.store(r.pre_x + hidden, dz);
      at.store(r.pre_x + 2 * hidden, dn);
      at.store(r.pre_h, dr);
      at.store(r.pre_h + hidden, dz);
      at.store(r.pre_h + 2 * hidden, hn::Mul(dn, reset));
      at.store(r.dh, hn::Mul(dh, z));
    });
  };
  if constexpr (norm == TermNorm::terms) {
    const Normaliser<T> x_hat(r.statistics + 9);  // of a_h's second segment
    const T *const gain = work.parts.gain_hh + 2 * hidden, *const bias = work.parts.bias_h + 2 * hidden;
    finish([&](auto at) HWY_ATTR { return hn::MulAdd(x_hat(at.load(r.a_h + 2 * hidden)), at.load(gain), at.load(bias)); });
  } else {
    finish([&](auto at) HWY_ATTR { return at.load(r.n_term); });
  }
}

template <class T, TermNorm norm>
void gru_group(const RecurrentBackward<T>& work, const BackwardRow<T>* rows, int count, T* sums) {
  for (int i = 0; i < count; ++i) gru_row<T, norm>(work, rows[i]);
  terms_backward<T, Cell::gru, norm>(work, rows, count, sums);
}

template <class T, TermNorm norm>
void rnn_group(const RecurrentBackward<T>& work, const BackwardRow<T>* rows, int count, T* sums) {
  for (int i = 0; i < count; ++i) {
    const BackwardRow<T>& r = rows[i];
    for_each_vector<T>(work.spec.hidden,
                       [&](auto at) HWY_ATTR { at.store(r.pre_x, hn::Mul(hn::Add(at.load(r.dy), at.load(r.dh)), tanh_slope(at.load(r.y)))); });
  }
  terms_backward<T, Cell::rnn, norm>(work, rows, count, sums);
}

}  // namespace
}  // namespace lamina::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LAMINA_KERNELS_CPU_RECURRENT_BACKWARD_CELLS_H
