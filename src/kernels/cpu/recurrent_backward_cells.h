// Included once per SIMD target (see simd.h): the cells of a recurrent layer, backward.

#if defined(LAMINA_KERNELS_CPU_RECURRENT_BACKWARD_CELLS_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LAMINA_KERNELS_CPU_RECURRENT_BACKWARD_CELLS_H
#undef LAMINA_KERNELS_CPU_RECURRENT_BACKWARD_CELLS_H
#else
#define LAMINA_KERNELS_CPU_RECURRENT_BACKWARD_CELLS_H
#endif

#include "kernels/cpu/recurrent_backward_terms.h"

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels::HWY_NAMESPACE {
namespace {

/// Of one gate, of a row whose summed inputs are normalised: what x-hat and h-hat are made of.
template <class T, TermNorm norm>
struct NormalGate {
  using S = Segments<Cell::lstm, norm>;
  static constexpr bool two = norm == TermNorm::terms;
  NormalGate() = default;
  NormalGate(const RecurrentSpec& spec, const BackwardRow<T>& r, int gate)
      : a_x(r.a_x + gate * spec.hidden), statistics_x(r.statistics + 3 * S::of(gate)) {
    if constexpr (two) a_h = r.a_h + gate * spec.hidden, statistics_h = r.statistics + 3 * (S::count + S::of(gate));
  }
  template <class At>
  HWY_INLINE Vec<T> x_hat(At at) const {
    return Normaliser<T>(statistics_x)(at.load(a_x));
  }
  template <class At>
  HWY_INLINE Vec<T> h_hat(At at) const {
    return Normaliser<T>(statistics_h)(at.load(a_h));
  }

  const T *a_x = nullptr, *statistics_x = nullptr, *a_h = nullptr, *statistics_h = nullptr;
};

// An LSTM's gates made anew from its normalised summed inputs, which backward reads anyway: into the place of their gradients. In a loop of its own:
// many of these long chains of instructions must be under way at once, and what waits for their ends would take the room.
template <class T, TermNorm norm, int kRows>
void make_gates(const RecurrentBackward<T>& work, const BackwardRow<T>* rows) {
  constexpr bool two = norm == TermNorm::terms;
  const int64_t hidden = work.spec.hidden;
  const auto make = [&](int gate, auto&& activation) HWY_ATTR {
    const T* const gain_x = (two ? work.parts.gain_ih : work.parts.gain_hh) + gate * hidden;
    const T *const gain_h = work.parts.gain_hh + gate * hidden, *const bias = work.parts.bias + gate * hidden;
    NormalGate<T, norm> in[kRows];
    T* out[kRows];
    for (int r = 0; r < kRows; ++r) in[r] = NormalGate<T, norm>(work.spec, rows[r], gate), out[r] = rows[r].pre_x + gate * hidden;
    for_each_vector<T>(hidden, [&](auto at) HWY_ATTR {
      const Vec<T> gx = at.load(gain_x), gh = at.load(gain_h), b = at.load(bias);
      for (int r = 0; r < kRows; ++r) {
        fetch_next_gates(in[r].a_x, 4 * hidden, at);
        Vec<T> sum = hn::MulAdd(in[r].x_hat(at), gx, b);
        if constexpr (two) {
          fetch_next_gates(in[r].a_h, 4 * hidden, at);
          sum = hn::MulAdd(in[r].h_hat(at), gh, sum);
        }
        at.store(out[r], activation(sum));
      }
    });
  };
  for (const int gate : {0, 1, 3}) make(gate, [](Vec<T> v) HWY_ATTR { return sigmoid(v); });
  make(2, [](Vec<T> v) HWY_ATTR { return tanh(v); });
}

/// Where the gates of a row are, in the thread's own registers or stack: what a loop writes could change what stands elsewhere, and it would read
/// all of it again.
template <class T, TermNorm norm>
struct GateSource {
  static constexpr bool two = norm == TermNorm::terms, anew = two || norm == TermNorm::gates;

  GateSource(const RecurrentBackward<T>& work, const BackwardRow<T>& r)
      : hidden(work.spec.hidden),
        gates(anew ? r.pre_x : r.gates),
        gain_x(two ? work.parts.gain_ih : work.parts.gain_hh),
        gain_h(work.parts.gain_hh),
        pre(r.pre_x) {
    if constexpr (anew)
      for (int gate = 0; gate < 4; ++gate) in[gate] = NormalGate<T, norm>(work.spec, r, gate);
  }

  int64_t hidden;
  const T *gates, *gain_x, *gain_h;
  T* pre;
  NormalGate<T, norm> in[4];
};

/// One of an LSTM's gates.
template <class T, TermNorm norm, int gate>
struct Gate {
  using Source = GateSource<T, norm>;

  template <class At>
  HWY_INLINE Gate(const Source& s, At at) : value(at.load(s.gates + gate * s.hidden)) {
    if (!Source::anew) fetch_next_gates(s.gates + gate * s.hidden, 4 * s.hidden, at);
  }

  /// Writes the gradient of the summed input; the terms of the row's sums grow.
  template <class At>
  HWY_INLINE void give(const Source& s, At at, Vec<T> gradient, Vec<T>* sums) const {
    const int64_t i = gate * s.hidden;
    at.store(s.pre + i, gradient);
    if constexpr (Source::anew) {
      const Vec<T> a = at.keep(hn::Mul(gradient, at.load(s.gain_x + i)));
      sums[0] = hn::Add(sums[0], a);
      sums[1] = hn::MulAdd(a, s.in[gate].x_hat(at), sums[1]);
    }
    if constexpr (Source::two) {
      const Vec<T> a = at.keep(hn::Mul(gradient, at.load(s.gain_h + i)));
      sums[2] = hn::Add(sums[2], a);
      sums[3] = hn::MulAdd(a, s.in[gate].h_hat(at), sums[3]);
    }
  }

  Vec<T> value;
};

// Gives the gradient of tanh's argument k, and writes that of o.
template <class T, TermNorm norm, class At>
HWY_INLINE Vec<T> argument_gradient(const GateSource<T, norm>& s, At at, Vec<T> k, Vec<T> dh, Vec<T>* sums) {
  const Gate<T, norm, 3> o(s, at);
  const Vec<T> t = tanh(k);
  o.give(s, at, hn::Mul(hn::Mul(dh, t), sigmoid_slope(o.value)), sums);
  return hn::Mul(hn::Mul(dh, o.value), tanh_slope(t));
}

// From the gradient of c to those of i, f, g; gives that of the c before.
template <class T, TermNorm norm, class At>
HWY_INLINE Vec<T> gate_gradients(const GateSource<T, norm>& s, At at, Vec<T> dc, Vec<T> before, Vec<T>* sums) {
  constexpr int apart = norm == TermNorm::gates ? 2 : 0;  // each gate's sums are its own, or all are one
  const Gate<T, norm, 0> i(s, at);
  const Gate<T, norm, 1> f(s, at);
  const Gate<T, norm, 2> g(s, at);
  i.give(s, at, hn::Mul(hn::Mul(dc, g.value), sigmoid_slope(i.value)), sums);
  g.give(s, at, hn::Mul(hn::Mul(dc, i.value), tanh_slope(g.value)), sums + 2 * apart);
  f.give(s, at, hn::Mul(hn::Mul(dc, before), sigmoid_slope(f.value)), sums + apart);
  return hn::Mul(dc, f.value);
}

/// What this step's f was multiplied with: c, or K(c).
template <class T>
struct CBefore {
  CBefore(const RecurrentBackward<T>& work, const BackwardRow<T>& r)
      : hidden(work.spec.hidden), c(r.c_before), gain(work.parts.gain_c), bias(work.parts.bias_c), normal(r.statistics_before != nullptr) {
    if (normal) x_hat = Normaliser<T>(r.statistics_before);
  }
  template <class At>
  HWY_INLINE Vec<T> operator()(At at) const {
    fetch_next(c, hidden, at);
    return normal ? hn::MulAdd(x_hat(at.load(c)), at.load(gain), at.load(bias)) : at.load(c);
  }

  int64_t hidden;
  const T *c, *gain, *bias;
  bool normal;
  Normaliser<T> x_hat;
};

// With saved gates; dc_at(at) is the gradient of c.
template <class T, class Gradient>
HWY_INLINE void lstm_gates_backward(const RecurrentBackward<T>& work, const BackwardRow<T>& r, Gradient dc_at) {
  const CBefore<T> before(work, r);
  const GateSource<T, TermNorm::none> source(work, r);
  T* const dc = r.dc;
  for_each_vector<T>(work.spec.hidden, [&](auto at) HWY_ATTR { at.store(dc, gate_gradients(source, at, dc_at(at), before(at), nullptr)); });
}

template <class T>
void plain_lstm_row(const RecurrentBackward<T>& work, const BackwardRow<T>& row) {
  const BackwardRow<T> r = row;
  const int64_t hidden = work.spec.hidden;
  const GateSource<T, TermNorm::none> source(work, r);
  lstm_gates_backward<T>(work, r, [&](auto at) HWY_ATTR {
    fetch_next(r.raw_c, hidden, at);
    fetch_next(r.dy, hidden, at);
    const Vec<T> dh = hn::Add(at.load(r.dy), at.load(r.dh));
    return hn::Add(at.load(r.dc), argument_gradient(source, at, at.load(r.raw_c), dh, nullptr));
  });
}

/// Sums of an LSTM's row: those of i, f and g (of each, or of all), and those of o.
template <TermNorm norm>
struct LstmSums {
  static constexpr int of_o = norm == TermNorm::terms ? 4 : norm == TermNorm::gates ? 2 : 0;
  static constexpr int others = norm == TermNorm::terms ? 4 : norm == TermNorm::gates ? 6 : 1;  // none: an idle one
  double others_sums[others] = {}, k_and_o[2 + of_o] = {};
  /// Of segment s: its number-th.
  double of(int s, int number) const {
    if (norm == TermNorm::terms) return others_sums[number] + k_and_o[2 + number];
    return s < 3 ? others_sums[2 * s + number] : k_and_o[2 + number];
  }
};

// The output: from the gradient of h to that of o and, in dh, of K(c), with their sums.
template <class T, TermNorm norm>
void lstm_output_backward(const RecurrentBackward<T>& work, const BackwardRow<T>& row, LstmSums<norm>& totals) {
  const BackwardRow<T> r = row;
  const int64_t hidden = work.spec.hidden;
  const bool carry = work.spec.carry;
  const T *const gain = work.parts.gain_c, *const bias = work.parts.bias_c;
  const GateSource<T, norm> source(work, r);
  const Normaliser<T> x_hat(r.statistics + work.spec.statistics() - 3);
  grown_sums<2 + LstmSums<norm>::of_o, T>(hidden, totals.k_and_o, [&](auto at, Vec<T>* sums) HWY_ATTR {
    fetch_next(r.raw_c, hidden, at);
    fetch_next(r.dy, hidden, at);
    const Vec<T> normal = x_hat(at.load(r.raw_c)), dh = hn::Add(at.load(r.dy), at.load(r.dh));
    Vec<T> dk = argument_gradient(source, at, hn::MulAdd(normal, at.load(gain), at.load(bias)), dh, sums + 2);
    if (carry) dk = hn::Add(dk, at.load(r.dc));
    at.store(r.dh, dk);
    const Vec<T> a = at.keep(hn::Mul(dk, at.load(gain)));
    sums[0] = hn::Add(sums[0], a);
    sums[1] = hn::MulAdd(a, normal, sums[1]);
  });
}

// Through K: in dc, the gradient of c. K's sums grow.
template <class T, TermNorm norm, int kRows>
void cell_norm_backward(const RecurrentBackward<T>& work, const BackwardRow<T>* rows, T* sums, const LstmSums<norm>* totals) {
  const int64_t hidden = work.spec.hidden;
  const bool carry = work.spec.carry;
  const RecurrentSums at_sum(work.spec);
  const T* const gain = work.parts.gain_c;
  T *const dgain = sums ? sums + at_sum.gain_c : nullptr, *const dbias = sums ? sums + at_sum.bias_c : nullptr;
  NormTerm<T> terms[kRows];
  T* dc[kRows];
  for (int r = 0; r < kRows; ++r) {
    terms[r] = NormTerm<T>(rows[r].raw_c, rows[r].dh, rows[r].statistics + work.spec.statistics() - 3);
    terms[r].finish_sums(work.spec.centre, hidden, totals[r].k_and_o[0], totals[r].k_and_o[1]);
    dc[r] = rows[r].dc;
  }
  for_each_vector<T>(hidden, [&](auto at) HWY_ATTR {
    const Vec<T> gain_at = at.load(gain);
    Vec<T> gain_sum = sums ? at.load(dgain) : zero<T>(), bias_sum = sums ? at.load(dbias) : zero<T>();
    for (int r = 0; r < kRows; ++r) {
      const Vec<T> dk = at.load(terms[r].pre), gradient = terms[r].gradient(at, dk, gain_at, gain_sum);
      bias_sum = hn::Add(bias_sum, dk);
      at.store(dc[r], carry ? gradient : hn::Add(gradient, at.load(dc[r])));
    }
    if (!sums) return;
    at.store(dgain, gain_sum);
    at.store(dbias, bias_sum);
  });
}

// From the gradient of c to those of i, f and g, with their sums, and of the c before.
template <class T, TermNorm norm>
void lstm_gates_backward(const RecurrentBackward<T>& work, const BackwardRow<T>& row, LstmSums<norm>& totals) {
  const CBefore<T> before(work, row);
  const GateSource<T, norm> source(work, row);
  T* const dc = row.dc;
  grown_sums<LstmSums<norm>::others, T>(work.spec.hidden, totals.others_sums, [&](auto at, Vec<T>* sums) HWY_ATTR {
    at.store(dc, gate_gradients(source, at, at.load(dc), before(at), sums));
  });
}

// With K over the row, and summed inputs normalised or not.
template <class T, TermNorm norm, int kRows>
void normalised_lstm_rows(const RecurrentBackward<T>& work, const BackwardRow<T>* rows, T* sums) {
  using S = Segments<Cell::lstm, norm>;
  constexpr bool two = norm == TermNorm::terms;
  LstmSums<norm> totals[kRows];
  if constexpr (GateSource<T, norm>::anew) make_gates<T, norm, kRows>(work, rows);
  for (int i = 0; i < kRows; ++i) lstm_output_backward<T, norm>(work, rows[i], totals[i]);
  cell_norm_backward<T, norm, kRows>(work, rows, sums, totals);
  for (int i = 0; i < kRows; ++i) lstm_gates_backward<T, norm>(work, rows[i], totals[i]);
  if constexpr (!GateSource<T, norm>::anew) return some_terms_backward<T, Cell::lstm, norm, kRows>(work, rows, sums);
  for (int s = 0; s < S::count; ++s) {
    SegmentTerms<T, kRows> terms;
    const int64_t n = S::size(s) * work.spec.hidden;
    for (int i = 0; i < kRows; ++i) {
      set_terms<T, Cell::lstm, norm>(work, rows[i], s, terms.x[i], terms.h[i]);
      terms.x[i].finish_sums(work.spec.centre, n, totals[i].of(s, 0), totals[i].of(s, 1));
      if constexpr (two) terms.h[i].finish_sums(work.spec.centre, n, totals[i].of(s, 2), totals[i].of(s, 3));
    }
    segment_gradient<T, Cell::lstm, norm, kRows>(work, rows, sums, s, terms);
  }
}

template <class T, TermNorm norm>
void lstm_group(const RecurrentBackward<T>& work, const BackwardRow<T>* rows, int count, T* sums) {
  if constexpr (!GateSource<T, norm>::anew) {
    if (!work.spec.normalise_c) {
      for (int i = 0; i < count; ++i) plain_lstm_row<T>(work, rows[i]);
      return terms_backward<T, Cell::lstm, norm>(work, rows, count, sums);
    }
  }
  if (count == kGroup) return normalised_lstm_rows<T, norm, kGroup>(work, rows, sums);
  for (int i = 0; i < count; ++i) normalised_lstm_rows<T, norm, 1>(work, rows + i, sums);
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
