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
    for (int r = 0; r < kRows; ++r) {
      const NormTerm<T>&x = terms.x[r], &h = terms.h[r];
      const Vec<T> pre_x = at.load(x.pre), pre_h = cell == Cell::gru ? at.load(h.pre) : pre_x;
      sum = hn::Add(sum, pre_x);
      if (from_afar) fetch_next(x.x, S::gates * hidden, at);
      if (from_afar && two) fetch_next(h.x, S::gates * hidden, at);
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

/// One of an LSTM's gates: as forward left it or, where rows of summed inputs are normalised, made anew from those, which backward reads anyway.
template <class T, TermNorm norm, int gate>
struct Gate {
  static constexpr bool two = norm == TermNorm::terms, anew = two || norm == TermNorm::gates;

  template <class At>
  HWY_INLINE Gate(const RecurrentBackward<T>& work, const BackwardRow<T>& r, At at) : pre(r.pre_x + gate * work.spec.hidden) {
    using S = Segments<Cell::lstm, norm>;
    const int64_t width = 4 * work.spec.hidden, i = gate * work.spec.hidden;
    if constexpr (!anew) {
      fetch_next(r.gates + i, width, at);
      value = at.load(r.gates + i);
      return;
    }
    fetch_next(r.a_x + i, width, at);
    x_hat = Normaliser<T>(r.statistics + 3 * S::of(gate))(at.load(r.a_x + i));
    gain_x = at.load((two ? work.parts.gain_ih : work.parts.gain_hh) + i);
    Vec<T> sum = hn::MulAdd(x_hat, gain_x, at.load(work.parts.bias + i));
    if constexpr (two) {
      fetch_next(r.a_h + i, width, at);
      h_hat = Normaliser<T>(r.statistics + 3 * (S::count + S::of(gate)))(at.load(r.a_h + i));
      gain_h = at.load(work.parts.gain_hh + i);
      sum = hn::Add(sum, hn::Mul(h_hat, gain_h));
    }
    value = gate == 2 ? tanh(sum) : sigmoid(sum);
  }

  /// Writes the gradient of the summed input; the terms of the row's sums grow.
  template <class At>
  HWY_INLINE void give(At at, Vec<T> gradient, Vec<T>* terms) const {
    at.store(pre, gradient);
    if constexpr (anew) {
      const Vec<T> a = hn::Mul(gradient, gain_x);
      terms[0] = hn::Add(terms[0], a);
      terms[1] = hn::MulAdd(a, x_hat, terms[1]);
    }
    if constexpr (two) {
      const Vec<T> a = hn::Mul(gradient, gain_h);
      terms[2] = hn::Add(terms[2], a);
      terms[3] = hn::MulAdd(a, h_hat, terms[3]);
    }
  }

  T* pre;
  Vec<T> value, x_hat, gain_x, h_hat, gain_h;
};

// Gives the gradient of tanh's argument k, and writes that of o.
template <class T, TermNorm norm, class At>
HWY_INLINE Vec<T> argument_gradient(const RecurrentBackward<T>& work, const BackwardRow<T>& r, At at, Vec<T> k, Vec<T>* terms) {
  fetch_next(r.raw_c, work.spec.hidden, at);
  fetch_next(r.dy, work.spec.hidden, at);
  const Gate<T, norm, 3> o(work, r, at);
  const Vec<T> t = tanh(k), dh = hn::Add(at.load(r.dy), at.load(r.dh));
  o.give(at, hn::Mul(hn::Mul(dh, t), sigmoid_slope(o.value)), terms);
  return hn::Mul(hn::Mul(dh, o.value), tanh_slope(t));
}

// From the gradient of c to those of i, f, g and, in r.dc, of the c before.
template <class T, TermNorm norm, class At>
HWY_INLINE void gate_gradients(const RecurrentBackward<T>& work, const BackwardRow<T>& r, At at, Vec<T> dc, Vec<T> before, Vec<T>* terms) {
  constexpr int apart = norm == TermNorm::gates ? 2 : 0;  // each gate's sums are its own, or all are one
  const Gate<T, norm, 0> i(work, r, at);
  const Gate<T, norm, 1> f(work, r, at);
  const Gate<T, norm, 2> g(work, r, at);
  i.give(at, hn::Mul(hn::Mul(dc, g.value), sigmoid_slope(i.value)), terms);
  f.give(at, hn::Mul(hn::Mul(dc, before), sigmoid_slope(f.value)), terms + apart);
  g.give(at, hn::Mul(hn::Mul(dc, i.value), tanh_slope(g.value)), terms + 2 * apart);
  at.store(r.dc, hn::Mul(dc, f.value));
}

/// What this step's f was multiplied with: c, or K(c).
template <class T>
struct CBefore {
  CBefore(const RecurrentBackward<T>& work, const BackwardRow<T>& r)
      : c(r.c_before), gain(work.parts.gain_c), bias(work.parts.bias_c), normal(r.statistics_before != nullptr) {
    if (normal) x_hat = Normaliser<T>(r.statistics_before);
  }
  template <class At>
  HWY_INLINE Vec<T> operator()(At at) const {
    return normal ? hn::MulAdd(x_hat(at.load(c)), at.load(gain), at.load(bias)) : at.load(c);
  }

  const T *c, *gain, *bias;
  bool normal;
  Normaliser<T> x_hat;
};

// With saved gates; dc_at(at) is the gradient of c.
template <class T, class Gradient>
HWY_INLINE void lstm_gates_backward(const RecurrentBackward<T>& work, const BackwardRow<T>& r, Gradient dc_at) {
  const CBefore<T> before(work, r);
  for_each_vector<T>(work.spec.hidden, [&](auto at) HWY_ATTR { gate_gradients<T, TermNorm::none>(work, r, at, dc_at(at), before(at), nullptr); });
}

template <class T>
void plain_lstm_row(const RecurrentBackward<T>& work, const BackwardRow<T>& r) {
  lstm_gates_backward<T>(work, r, [&](auto at) HWY_ATTR {
    return hn::Add(at.load(r.dc), argument_gradient<T, TermNorm::none>(work, r, at, at.load(r.raw_c), nullptr));
  });
}

/// Sums of an LSTM's row: those of i, f and g (of each, or of all), and those of o.
template <TermNorm norm>
struct LstmSums {
  static constexpr int of_o = norm == TermNorm::terms ? 4 : norm == TermNorm::gates ? 2 : 0;
  static constexpr int others = norm == TermNorm::terms ? 4 : norm == TermNorm::gates ? 6 : 1;  // none: an idle one
  double sums[others + of_o];
};

// With K over the row. dk, the gradient of K(c), passes through dh.
template <class T, TermNorm norm>
LstmSums<norm> normalised_lstm_row(const RecurrentBackward<T>& work, const BackwardRow<T>& r, T* sums) {
  const int64_t hidden = work.spec.hidden;
  const bool carry = work.spec.carry;
  const RecurrentSums at_sum(work.spec);
  const T *const gain = work.parts.gain_c, *const bias = work.parts.bias_c;
  constexpr int of_k = 2 + LstmSums<norm>::of_o, others = LstmSums<norm>::others;
  using TermsOfK = Terms<T, of_k>;
  using OtherTerms = Terms<T, others>;
  NormTerm<T> term(r.raw_c, r.dh, r.statistics + work.spec.statistics() - 3);
  const auto first = row_sums<1, of_k, T>(hidden, [&](auto at, int) HWY_ATTR {
    const Vec<T> normal = term.x_hat()(at.load(r.raw_c)), gain_at = at.load(gain);
    TermsOfK terms;
    for (Vec<T>& v : terms.term) v = zero<T>();
    Vec<T> dk = argument_gradient<T, norm>(work, r, at, hn::MulAdd(normal, gain_at, at.load(bias)), terms.term + 2);
    if (carry) dk = hn::Add(dk, at.load(r.dc));
    at.store(r.dh, dk);
    terms.term[0] = hn::Mul(dk, gain_at);
    terms.term[1] = hn::Mul(terms.term[0], normal);
    return terms;
  });
  term.finish_sums(work.spec.centre, hidden, first[0][0], first[0][1]);
  T *const dgain = sums ? sums + at_sum.gain_c : nullptr, *const dbias = sums ? sums + at_sum.bias_c : nullptr;
  const CBefore<T> before(work, r);
  const auto second = row_sums<1, others, T>(hidden, [&](auto at, int) HWY_ATTR {
    const Vec<T> dk = at.load(r.dh);
    Vec<T> gain_sum = sums ? at.load(dgain) : zero<T>();
    const Vec<T> dc = term.gradient(at, dk, at.load(gain), gain_sum);
    if (sums) {
      at.store(dgain, gain_sum);
      at.store(dbias, hn::Add(at.load(dbias), dk));
    }
    OtherTerms terms;
    for (Vec<T>& v : terms.term) v = zero<T>();
    gate_gradients<T, norm>(work, r, at, carry ? dc : hn::Add(dc, at.load(r.dc)), before(at), terms.term);
    return terms;
  });
  LstmSums<norm> result;
  std::copy(second[0].begin(), second[0].end(), result.sums);
  std::copy(first[0].begin() + 2, first[0].end(), result.sums + others);
  return result;
}

// A group whose gates are made anew.
template <class T, TermNorm norm>
void normalised_lstm_group(const RecurrentBackward<T>& work, const BackwardRow<T>* rows, int count, T* sums) {
  using S = Segments<Cell::lstm, norm>;
  constexpr bool two = norm == TermNorm::terms;
  SegmentTerms<T, kGroup> terms[S::count];
  for (int i = 0; i < count; ++i) {
    LstmSums<norm> totals = normalised_lstm_row<T, norm>(work, rows[i], sums);
    if constexpr (two)
      for (int k = 0; k < 4; ++k) totals.sums[k] += totals.sums[4 + k];
    for (int s = 0; s < S::count; ++s) {
      NormTerm<T>&x = terms[s].x[i], &h = terms[s].h[i];
      const double* const total = totals.sums + 2 * s;
      const int64_t n = S::size(s) * work.spec.hidden;
      set_terms<T, Cell::lstm, norm>(work, rows[i], s, x, h);
      x.finish_sums(work.spec.centre, n, total[0], total[1]);
      if constexpr (two) h.finish_sums(work.spec.centre, n, total[2], total[3]);
    }
  }
  for (int s = 0; s < S::count; ++s) {
    if (count == kGroup) {
      segment_gradient<T, Cell::lstm, norm, kGroup>(work, rows, sums, s, terms[s]);
      continue;
    }
    for (int i = 0; i < count; ++i) segment_gradient<T, Cell::lstm, norm, 1>(work, rows + i, sums, s, {{terms[s].x[i]}, {terms[s].h[i]}});
  }
}

template <class T, TermNorm norm>
void lstm_group(const RecurrentBackward<T>& work, const BackwardRow<T>* rows, int count, T* sums) {
  if constexpr (norm == TermNorm::terms || norm == TermNorm::gates) {
    normalised_lstm_group<T, norm>(work, rows, count, sums);
  } else {
    for (int i = 0; i < count; ++i)
      work.spec.normalise_c ? void(normalised_lstm_row<T, norm>(work, rows[i], sums)) : plain_lstm_row<T>(work, rows[i]);
    terms_backward<T, Cell::lstm, norm>(work, rows, count, sums);
  }
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
