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

// Through a normaliser of a run of a row: pre is the gradient of x-hat gain + bias. a and a-hat below: pre gain, and its product with x-hat.
template <class T>
struct NormTerm {
  NormTerm() = default;
  NormTerm(const T* values, const T* gradient, const T* numbers) : x(values), pre(gradient), statistics(numbers) {}

  HWY_INLINE Normaliser<T> x_hat() const { return Normaliser<T>(statistics); }
  template <class At>
  HWY_INLINE Two<Vec<T>> terms(At at, Vec<T> gain) const {
    const Vec<T> a = hn::Mul(at.load(pre), gain);
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

// The columns [begin, begin + n), one segment, of kRows rows: from the gradients of the summed inputs to those of a_x and a_h; the sums of gains
// grow.
template <class T, RecurrentCell cell, TermNorm norm, int kRows>
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
    const Two<Vec<T>> a = x[r].terms(at, at.load(gain_x));
    if constexpr (two) {
      const Two<Vec<T>> b = h[r].terms(at, at.load(gain_h));
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
  T* const dgain_x = sums ? sums + (two ? at_sum.gain_ih : at_sum.gain_hh) + begin : nullptr;
  T* const dgain_h = sums ? sums + at_sum.gain_hh + begin : nullptr;
  for_each_vector<T>(n, [&](auto at) HWY_ATTR {
    const Vec<T> gx = at.load(gain_x), gh = at.load(gain_h);
    Vec<T> sum_x = sums ? at.load(dgain_x) : zero<T>(), sum_h = sums && two ? at.load(dgain_h) : zero<T>();
    for (int r = 0; r < kRows; ++r) {
      const Vec<T> pre_x = at.load(x[r].pre), pre_h = two ? at.load(h[r].pre) : pre_x;
      at.store(rows[r].da_x + begin, x[r].gradient(at, pre_x, gx, sum_x));
      if constexpr (two) at.store(rows[r].da_h + begin, h[r].gradient(at, pre_h, gh, sum_h));
    }
    if (!sums) return;
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

template <class T, RecurrentCell cell, TermNorm norm, int kRows>
void some_terms_backward(const RecurrentBackward<T>& work, const BackwardRow<T>* rows, T* sums) {
  using S = Segments<cell, norm>;
  const int64_t hidden = work.spec.hidden;
  const RecurrentSums at_sum(work.spec);
  if (sums) {
    add_rows<kRows>(sums + at_sum.bias, S::gates * hidden, [&](int r) { return rows[r].pre_x; });
    if (cell == RecurrentCell::gru) add_rows<kRows>(sums + at_sum.n_bias, hidden, [&](int r) { return rows[r].pre_h + 2 * hidden; });
  }
  if constexpr (norm == TermNorm::terms || norm == TermNorm::gates)
    for (int s = 0; s < S::count; ++s) segment_backward<T, cell, norm, kRows>(work, rows, sums, s);
}

// From the gradients of the summed inputs to those of a_x and a_h, and the sums of biases and gains. Rows are added one after the other, whether they
// come as a group or alone.
template <class T, RecurrentCell cell, TermNorm norm>
void terms_backward(const RecurrentBackward<T>& work, const BackwardRow<T>* rows, int count, T* sums) {
  if (count == kGroup) return some_terms_backward<T, cell, norm, kGroup>(work, rows, sums);
  for (int i = 0; i < count; ++i) some_terms_backward<T, cell, norm, 1>(work, rows + i, sums);
}

// Gives the gradient of tanh's argument k, and writes that of o into pre_x.
template <class T, class At>
HWY_INLINE Vec<T> argument_gradient(const BackwardRow<T>& r, int64_t hidden, At at, Vec<T> k) {
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
  terms_backward<T, RecurrentCell::lstm, norm>(work, rows, count, sums);
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
  terms_backward<T, RecurrentCell::gru, norm>(work, rows, count, sums);
}

template <class T, TermNorm norm>
void rnn_group(const RecurrentBackward<T>& work, const BackwardRow<T>* rows, int count, T* sums) {
  for (int i = 0; i < count; ++i) {
    const BackwardRow<T>& r = rows[i];
    for_each_vector<T>(work.spec.hidden,
                       [&](auto at) HWY_ATTR { at.store(r.pre_x, hn::Mul(hn::Add(at.load(r.dy), at.load(r.dh)), tanh_slope(at.load(r.y)))); });
  }
  terms_backward<T, RecurrentCell::rnn, norm>(work, rows, count, sums);
}

/// Takes up to kGroup rows through the cell.
template <class T>
using GroupFn = void (*)(const RecurrentBackward<T>&, const BackwardRow<T>*, int, T*);

template <class T, TermNorm norm>
GroupFn<T> group_of(RecurrentCell cell) {
  return cell == RecurrentCell::lstm ? lstm_group<T, norm> : cell == RecurrentCell::gru ? gru_group<T, norm> : rnn_group<T, norm>;
}

template <class T>
GroupFn<T> group_of(const RecurrentSpec& spec) {
  if (spec.norm == TermNorm::terms) return group_of<T, TermNorm::terms>(spec.cell);
  if (spec.norm == TermNorm::gates) return lstm_group<T, TermNorm::gates>;
  return group_of<T, TermNorm::none>(spec.cell);
}

template <class T>
BackwardRow<T> row_at(const RecurrentBackward<T>& w, int64_t step, int64_t row) {
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
void cells(const RecurrentBackward<T>& w, GroupFn<T> group, int64_t step, Range rows, T* sums) {
  for (int64_t begin = rows.begin; begin < rows.end; begin += kGroup) {
    BackwardRow<T> r[kGroup];
    const int count = static_cast<int>(std::min<int64_t>(kGroup, rows.end - begin));
    for (int i = 0; i < count; ++i) r[i] = row_at(w, step, begin + i);
    group(w, r, count, sums);
  }
}

template <class T>
void walk(const RecurrentBackward<T>& w) {
  const GroupFn<T> group = group_of<T>(w.spec);
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
        cells(w, group, step, {blocks.begin(block), std::min(alive, blocks.begin(block + 1))}, sums.of(block));
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
          BackwardRow<T> r = row_at<T>(w, step, row);
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
      for_rows([&](int64_t row, const BackwardRow<T>& r) HWY_ATTR {
        const T* const k_row = k.data() + row * hidden;
        for_each_vector<T>(hidden, [&](auto v) HWY_ATTR { v.store(r.dh, argument_gradient(r, hidden, v, v.load(k_row))); });
      });
      through(alive, hidden, step, s, c, w.parts.gain_c, w.dh, dc.data(), at.gain_c, at.bias_c);
      for_rows([&](int64_t row, const BackwardRow<T>& r) HWY_ATTR {
        const T* const dc_row = dc.data() + row * hidden;
        lstm_gates_backward<T>(w, r, [&](auto v) HWY_ATTR { return hn::Add(v.load(r.dc), v.load(dc_row)); });
      });
    } else {
      for_rows([&](int64_t, const BackwardRow<T>& r) {
        gru ? gru_group<T, TermNorm::columns>(w, &r, 1, nullptr) : rnn_group<T, TermNorm::columns>(w, &r, 1, nullptr);
      });
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
