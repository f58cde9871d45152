// The backward walk of a recurrent layer.

#include <algorithm>

#include <lamina/core/parallel.h>
#include "kernels/cpu/recurrent_parts.h"
#include "kernels/cpu/scratch.h"
#include "kernels/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/recurrent_backward.cpp"
#include <hwy/foreach_target.h>

#include "kernels/cpu/recurrent_simd.h"

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels::HWY_NAMESPACE {
namespace {

/// One sequence's rows at a step. pre_x and pre_h: gradients of the summed inputs outside and inside the product with GRU's r (one array else); da_x
/// and da_h, which may be the same arrays: those of a_x and a_h.
template <class T>
struct BackwardRow {
  const T *a_x, *a_h, *gates, *raw_c, *y, *n_term, *statistics, *c_before, *h_before, *statistics_before, *dy;
  T *dh, *dc, *pre_x, *pre_h, *da_x, *da_h, *sums;
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

/// target += f(at) over n elements.
template <class T, class F>
HWY_INLINE void add_to(T* target, int64_t n, F&& f) {
  for_each_vector<T>(n, [&](auto at) HWY_ATTR { at.store(target, hn::Add(at.load(target), f(at))); });
}

// Through a normaliser of n elements: pre is the gradient of x-hat gain + bias, a that of x. a = pre is allowed.
template <class T>
struct NormTerm {
  NormTerm(const T* values, const T* gains, const T* gradient, const T* statistics)
      : x(values), gain(gains), pre(gradient), x_hat(statistics), rstd(set(statistics[1])) {}

  template <class At>
  HWY_INLINE Two<Vec<T>> terms(At at) const {
    const Vec<T> scaled = hn::Mul(at.load(pre), at.load(gain));
    return {scaled, hn::Mul(scaled, x_hat(at.load(x)))};
  }
  HWY_INLINE void finish_sums(bool centre, int64_t n, double sum, double sum_x) {
    mean = set(static_cast<T>(centre ? sum / static_cast<double>(n) : 0));
    mean_x = set(static_cast<T>(sum_x / static_cast<double>(n)));
  }
  /// The gradient of x; dgain, if not null, grows.
  template <class At>
  HWY_INLINE Vec<T> gradient(At at, Vec<T> pre_at, T* dgain) const {
    const Vec<T> normal = x_hat(at.load(x));
    if (dgain) at.store(dgain, hn::MulAdd(pre_at, normal, at.load(dgain)));
    return hn::Mul(rstd, hn::NegMulAdd(normal, mean_x, hn::MulSub(pre_at, at.load(gain), mean)));
  }

  const T *x, *gain, *pre;
  Normaliser<T> x_hat;
  Vec<T> rstd, mean, mean_x;
};

// From the gradients of the summed inputs to those of a_x and a_h, and the sums of biases and gains.
template <class T, RecurrentCell cell, TermNorm norm>
void terms_backward(const RecurrentBackward<T>& work, const BackwardRow<T>& r) {
  using S = Segments<cell, norm>;
  constexpr bool normalised = norm == TermNorm::terms || norm == TermNorm::gates, two = norm == TermNorm::terms;
  const int64_t hidden = work.spec.hidden, width = S::gates * hidden;
  const RecurrentSums sums_at(work.spec);
  if (r.sums) {
    add_to(r.sums + sums_at.bias, width, [&](auto at) HWY_ATTR { return at.load(r.pre_x); });
    if (cell == RecurrentCell::gru) add_to(r.sums + sums_at.n_bias, hidden, [&](auto at) HWY_ATTR { return at.load(r.pre_h + 2 * hidden); });
  }
  if constexpr (normalised) {
    for (int s = 0; s < S::count; ++s) {
      const int64_t begin = S::first(s) * hidden, n = S::size(s) * hidden;
      const T* const gain_x = norm == TermNorm::gates ? work.parts.gain_hh : work.parts.gain_ih;
      NormTerm<T> x(r.a_x + begin, gain_x + begin, r.pre_x + begin, r.statistics + 3 * s);
      T* const dgain_x = r.sums ? r.sums + (norm == TermNorm::gates ? sums_at.gain_hh : sums_at.gain_ih) + begin : nullptr;
      if constexpr (two) {
        NormTerm<T> h(r.a_h + begin, work.parts.gain_hh + begin, r.pre_h + begin, r.statistics + 3 * (S::count + s));
        T* const dgain_h = r.sums ? r.sums + sums_at.gain_hh + begin : nullptr;
        const auto totals = sums<T, 4>(n, [&](auto at) HWY_ATTR {
          const Two<Vec<T>> a = x.terms(at), b = h.terms(at);
          return Terms<T, 4>{{a.first, a.second, b.first, b.second}};
        });
        x.finish_sums(work.spec.centre, n, totals[0], totals[1]);
        h.finish_sums(work.spec.centre, n, totals[2], totals[3]);
        for_each_vector<T>(n, [&](auto at) HWY_ATTR {
          const Vec<T> pre_x = at.load(x.pre), pre_h = at.load(h.pre);
          at.store(r.da_x + begin, x.gradient(at, pre_x, dgain_x));
          at.store(r.da_h + begin, h.gradient(at, pre_h, dgain_h));
        });
      } else {
        const auto totals = sums<T, 2>(n, [&](auto at) HWY_ATTR {
          const Two<Vec<T>> a = x.terms(at);
          return Terms<T, 2>{{a.first, a.second}};
        });
        x.finish_sums(work.spec.centre, n, totals[0], totals[1]);
        for_each_vector<T>(n, [&](auto at) HWY_ATTR { at.store(r.da_x + begin, x.gradient(at, at.load(x.pre), dgain_x)); });
      }
    }
  }
}

// From the gradient of h to those of o (in pre_x) and of tanh's argument: c's own, added to dc, or K(c)'s. k: K(c) where it was formed already;
// its gradient is left in dh.
template <class T>
void lstm_output_backward(const RecurrentBackward<T>& work, const BackwardRow<T>& r, const T* k) {
  const int64_t hidden = work.spec.hidden;
  const T* const o = r.gates + 3 * hidden;
  // Gives the gradient of the argument, whose values are k_at(at).
  const auto argument = [&](auto at, Vec<T> k_at) HWY_ATTR {
    const Vec<T> t = tanh(k_at), o_at = at.load(o), dh = hn::Add(at.load(r.dy), at.load(r.dh));
    at.store(r.pre_x + 3 * hidden, hn::Mul(hn::Mul(dh, t), sigmoid_slope(o_at)));
    return hn::Mul(hn::Mul(dh, o_at), tanh_slope(t));
  };
  if (k) return for_each_vector<T>(hidden, [&](auto at) HWY_ATTR { at.store(r.dh, argument(at, at.load(k))); });
  if (!work.spec.normalise_c)
    return for_each_vector<T>(hidden, [&](auto at) HWY_ATTR { at.store(r.dc, hn::Add(at.load(r.dc), argument(at, at.load(r.raw_c)))); });

  const RecurrentSums sums_at(work.spec);
  const T *const gain = work.parts.gain_c, *const bias = work.parts.bias_c;
  NormTerm<T> term(r.raw_c, gain, r.dh, r.statistics + work.spec.statistics() - 3);
  for_each_vector<T>(hidden, [&](auto at) HWY_ATTR {
    const Vec<T> dk = argument(at, hn::MulAdd(term.x_hat(at.load(r.raw_c)), at.load(gain), at.load(bias)));
    at.store(r.dh, work.spec.carry ? hn::Add(dk, at.load(r.dc)) : dk);
  });
  const auto totals = sums<T, 2>(hidden, [&](auto at) HWY_ATTR {
    const Two<Vec<T>> a = term.terms(at);
    return Terms<T, 2>{{a.first, a.second}};
  });
  term.finish_sums(work.spec.centre, hidden, totals[0], totals[1]);
  T* const dgain = r.sums ? r.sums + sums_at.gain_c : nullptr;
  if (r.sums) add_to(r.sums + sums_at.bias_c, hidden, [&](auto at) HWY_ATTR { return at.load(r.dh); });
  for_each_vector<T>(hidden, [&](auto at) HWY_ATTR {
    const Vec<T> dc = term.gradient(at, at.load(r.dh), dgain);
    at.store(r.dc, work.spec.carry ? dc : hn::Add(dc, at.load(r.dc)));
  });
}

// From the gradient of c to those of i, f, g and of the c before.
template <class T>
void lstm_gates_backward(const RecurrentBackward<T>& work, const BackwardRow<T>& r) {
  const int64_t hidden = work.spec.hidden;
  const auto finish = [&](auto before) HWY_ATTR {
    for_each_vector<T>(hidden, [&](auto at) HWY_ATTR {
      const Vec<T> i = at.load(r.gates), f = at.load(r.gates + hidden), g = at.load(r.gates + 2 * hidden), dc = at.load(r.dc);
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

template <class T, TermNorm norm>
void lstm_row(const RecurrentBackward<T>& work, const BackwardRow<T>& r) {
  lstm_output_backward<T>(work, r, nullptr);
  lstm_gates_backward(work, r);
  terms_backward<T, RecurrentCell::lstm, norm>(work, r);
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
  terms_backward<T, RecurrentCell::gru, norm>(work, r);
}

template <class T, TermNorm norm>
void rnn_row(const RecurrentBackward<T>& work, const BackwardRow<T>& r) {
  for_each_vector<T>(work.spec.hidden,
                     [&](auto at) HWY_ATTR { at.store(r.pre_x, hn::Mul(hn::Add(at.load(r.dy), at.load(r.dh)), tanh_slope(at.load(r.y)))); });
  terms_backward<T, RecurrentCell::rnn, norm>(work, r);
}

template <class T>
using RowFn = void (*)(const RecurrentBackward<T>&, const BackwardRow<T>&);

template <class T, TermNorm norm>
RowFn<T> row_of(RecurrentCell cell) {
  return cell == RecurrentCell::lstm ? lstm_row<T, norm> : cell == RecurrentCell::gru ? gru_row<T, norm> : rnn_row<T, norm>;
}

template <class T>
RowFn<T> row_of(const RecurrentSpec& spec) {
  if (spec.norm == TermNorm::terms) return row_of<T, TermNorm::terms>(spec.cell);
  if (spec.norm == TermNorm::gates) return lstm_row<T, TermNorm::gates>;
  return row_of<T, TermNorm::none>(spec.cell);
}

template <class T>
BackwardRow<T> row_at(const RecurrentBackward<T>& w, int64_t step, int64_t row, T* sums) {
  const int64_t hidden = w.spec.hidden, width = w.spec.width(), numbers = w.spec.statistics();
  const auto at = [&](const auto& array, int64_t of) { return array.row(w.steps, step, row, of); };
  const auto before = [&](const OverTime<const T>& array, const T* start, int64_t of) {
    return step > 0 ? array.row(w.steps, step - 1, row, of) : start ? start + row * of : nullptr;
  };
  BackwardRow<T> r{};
  r.a_x = at(w.a_x, width), r.a_h = at(w.a_h, width), r.gates = at(w.gates, width);
  r.raw_c = at(w.raw_c, hidden), r.y = at(w.y, hidden), r.n_term = at(w.n_term, hidden), r.statistics = at(w.statistics, numbers);
  r.c_before = before(w.raw_c, w.c0, hidden), r.h_before = before(w.y, w.h0, hidden);
  if (w.spec.carry) r.statistics_before = before(w.statistics, nullptr, numbers);
  if (r.statistics_before) r.statistics_before += numbers - 3;
  r.dy = at(w.dy, hidden), r.dh = w.dh + row * hidden, r.dc = w.dc ? w.dc + row * hidden : nullptr;
  r.da_x = r.pre_x = at(w.da_x, width);
  r.da_h = r.pre_h = at(w.da_h, width);
  if (w.spec.cell != RecurrentCell::gru) r.pre_h = r.pre_x;
  r.sums = sums;
  return r;
}

/// Partial sums of a walk, a set for each block of rows.
template <class T>
class BlockSums {
 public:
  BlockSums(const RecurrentBackward<T>& w, const RowBlocks& blocks)
      : count_(w.sums ? RecurrentSums(w.spec).count : 0), blocks_(blocks), parts_(blocks.count * count_) {
    std::fill_n(parts_.data(), blocks.count * count_, T{0});
  }
  T* of(int64_t block) const { return count_ ? parts_.data() + block * count_ : nullptr; }
  void add_into(T* sums) const {
    for (int64_t i = 0; i < count_; ++i) {
      double total = static_cast<double>(sums[i]);
      for (int64_t block = 0; block < blocks_.count; ++block) total += static_cast<double>(of(block)[i]);
      sums[i] = static_cast<T>(total);
    }
  }

 private:
  int64_t count_;
  RowBlocks blocks_;
  Scratch<T> parts_;
};

template <class T>
void walk(const RecurrentBackward<T>& w) {
  const RowFn<T> cell = row_of<T>(w.spec);
  const RowBlocks blocks(w.steps.batch);
  const BlockSums<T> sums(w, blocks);
  const int64_t hidden = w.spec.hidden, width = w.spec.width();
  const OverTime<T>& da = w.spec.one_gradient() ? w.da_x : w.da_h;
  const Output<T> dh{w.spec.cell == RecurrentCell::gru ? T{1} : T{0}, w.dh, hidden, nullptr};
  detail::parallel_team(team_size(w.spec, w.steps), [&](const detail::Team& team) HWY_ATTR {
    const Share share(team, w.steps, panel_count(*w.weight), kTileRows);
    for (int64_t step = w.steps.last - 1; step >= w.steps.first; --step) {
      const int64_t alive = w.steps.alive[step];
      for (int64_t block = share.blocks.begin; block < share.blocks.end; ++block)
        for (int64_t row = blocks.begin(block); row < std::min(alive, blocks.begin(block + 1)); ++row) cell(w, row_at(w, step, row, sums.of(block)));
      share.meet();
      if (step > 0 || w.to_start) share_of_product<T>(share.product_rows(alive), share.panels, da.row(w.steps, step, 0, width), width, *w.weight, dh);
      share.meet();
    }
  });
  if (w.sums) sums.add_into(w.sums);
}

/// Through statistics over the sequences of one step.
template <class T>
class ColumnsBackward {
 public:
  ColumnsBackward(const RecurrentBackward<T>& work, int64_t most) : work_(work), dgain_(most), dbias_(most) {}

  void operator()(int64_t rows, int64_t width, int64_t step, const ColumnStatistics<const T>& columns, const T* x, const T* gain, const T* dy, T* dx,
                  int64_t gain_at, int64_t bias_at) const {
    const ChannelNorm channels{.batch = rows, .channels = width, .eps = work_.spec.eps};
    const bool sums = work_.sums != nullptr;
    CpuBackend::norm<T>().channel_backward(channels, work_.spec.given, x, gain, columns.mean + step * width, columns.rstd + step * width, dy, dx,
                                           sums ? dgain_.data() : nullptr, sums ? dbias_.data() : nullptr);
    if (!sums) return;
    for (int64_t i = 0; i < width; ++i) work_.sums[gain_at + i] += dgain_.data()[i];
    if (bias_at >= 0)
      for (int64_t i = 0; i < width; ++i) work_.sums[bias_at + i] += dbias_.data()[i];
    else if (work_.spec.cell == RecurrentCell::gru)
      for (int64_t i = 0; i < work_.spec.hidden; ++i) work_.sums[RecurrentSums(work_.spec).n_bias + i] += dbias_.data()[2 * work_.spec.hidden + i];
  }

 private:
  const RecurrentBackward<T>& work_;
  Scratch<T> dgain_, dbias_;
};

template <class T>
void walk_by_columns(const RecurrentBackward<T>& w) {
  const int64_t hidden = w.spec.hidden, width = w.spec.width(), batch = w.steps.batch;
  const RecurrentSums at(w.spec);
  const Scratch<T> x(batch * width), h(batch * width), k(batch * hidden), dc(batch * hidden);
  const ColumnsBackward<T> through(w, width);
  const bool lstm = w.spec.cell == RecurrentCell::lstm, gru = w.spec.cell == RecurrentCell::gru;
  for (int64_t step = w.steps.last - 1; step >= w.steps.first; --step) {
    const int64_t alive = w.steps.alive[step];
    const auto for_rows = [&](auto&& f) {
      parallel_for(alive, std::max<int64_t>(1, 4096 / hidden), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          BackwardRow<T> r = row_at<T>(w, step, row, nullptr);
          r.pre_x = x.data() + row * width, r.pre_h = gru ? h.data() + row * width : r.pre_x;
          f(row, r);
        }
      });
    };
    if (lstm) {
      const T* const c = w.raw_c.row(w.steps, step, 0, hidden);
      const ChannelNorm channels{.batch = alive, .channels = hidden, .eps = w.spec.eps};
      const ColumnStatistics<const T>& s = w.c_columns;
      CpuBackend::norm<T>().channel_forward(channels, c, s.mean + step * hidden, s.shift ? s.shift + step * hidden : nullptr, s.rstd + step * hidden,
                                            w.parts.gain_c, w.parts.bias_c, k.data());
      for_rows([&](int64_t row, const BackwardRow<T>& r) { lstm_output_backward<T>(w, r, k.data() + row * hidden); });
      through(alive, hidden, step, s, c, w.parts.gain_c, w.dh, dc.data(), at.gain_c, at.bias_c);
      for_rows([&](int64_t row, const BackwardRow<T>& r) HWY_ATTR {
        add_to(r.dc, hidden, [&](auto v) HWY_ATTR { return v.load(dc.data() + row * hidden); });
        lstm_gates_backward(w, r);
      });
    } else {
      for_rows([&](int64_t, const BackwardRow<T>& r) { gru ? gru_row<T, TermNorm::columns>(w, r) : rnn_row<T, TermNorm::columns>(w, r); });
    }
    T *const da_x = w.da_x.row(w.steps, step, 0, width), *const da_h = w.da_h.row(w.steps, step, 0, width);
    through(alive, width, step, w.x_columns, w.a_x.row(w.steps, step, 0, width), w.parts.gain_ih, x.data(), da_x, at.gain_ih, at.bias);
    through(alive, width, step, w.h_columns, w.a_h.row(w.steps, step, 0, width), w.parts.gain_hh, gru ? h.data() : x.data(), da_h, at.gain_hh, -1);
    if (step > 0 || w.to_start) CpuBackend::gemm<T>().gemm(alive, {da_h, width, false}, *w.weight, gru ? T{1} : T{0}, w.dh, hidden, nullptr);
  }
}

template <class T>
struct CpuBackward final : RecurrentBackwardPart<T> {
  void run(const RecurrentBackward<T>& work) const override {
    if (work.spec.norm == TermNorm::columns) return walk_by_columns(work);
    walk(work);
  }
};

const RecurrentBackwardPart<float>* backward_f32() {
  static const CpuBackward<float> part;
  return &part;
}
const RecurrentBackwardPart<double>* backward_f64() {
  static const CpuBackward<double> part;
  return &part;
}

}  // namespace
}  // namespace lamina::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lamina::kernels {
HWY_EXPORT(backward_f32);
HWY_EXPORT(backward_f64);
template <>
const RecurrentBackwardPart<float>& recurrent_backward_part() {
  return *HWY_DYNAMIC_DISPATCH(backward_f32)();
}
template <>
const RecurrentBackwardPart<double>& recurrent_backward_part() {
  return *HWY_DYNAMIC_DISPATCH(backward_f64)();
}
}  // namespace lamina::kernels
#endif
