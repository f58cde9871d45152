// The forward walk of a recurrent layer.

#include <algorithm>

#include <lamina/core/parallel.h>
#include "kernels/cpu/recurrent_parts.h"
#include "kernels/cpu/scratch.h"
#include "kernels/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/recurrent_forward.cpp"
#include <hwy/foreach_target.h>

#include "kernels/cpu/recurrent_simd.h"

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels::HWY_NAMESPACE {
namespace {

/// One sequence's rows at a step.
template <class T>
struct ForwardRow {
  const T *a_x, *a_h;
  T *gates, *h, *c, *raw_c, *y, *n_term, *statistics;
};

/// The summed inputs of a row: x(gate) and h(gate) stand outside and inside the product with GRU's r; both together in x where they are added up.
template <class T, Cell cell, TermNorm norm>
struct SummedInputs {
  using S = Segments<cell, norm>;
  static constexpr bool normalised = norm == TermNorm::terms || norm == TermNorm::gates;
  static constexpr bool two = norm == TermNorm::terms || norm == TermNorm::columns || cell == Cell::gru;

  SummedInputs(const RecurrentForward<T>& work, const ForwardRow<T>& r)
      : hidden(work.spec.hidden), a_x(r.a_x), a_h(r.a_h), statistics(r.statistics), parts(work.parts) {}

  /// The statistics of a group of rows.
  static void measure(const RecurrentForward<T>& work, const ForwardRow<T>* rows, int count) {
    if constexpr (normalised)
      for (int s = 0; s < S::count; ++s) {
        const int64_t begin = S::first(s) * work.spec.hidden, width = S::size(s) * work.spec.hidden;
        constexpr int terms = two ? 2 : 1;
        const T* x[terms * kGroup];
        T* statistics[terms * kGroup];
        for (int i = 0; i < kGroup; ++i) {
          const ForwardRow<T>& r = rows[std::min(i, count - 1)];
          x[i] = r.a_x + begin, statistics[i] = r.statistics + 3 * s;
          if constexpr (two) x[kGroup + i] = r.a_h + begin, statistics[kGroup + i] = r.statistics + 3 * (S::count + s);
        }
        measure_into<terms * kGroup, T>(work.spec, width, x, statistics);
      }
  }

  template <class At>
  HWY_INLINE Vec<T> x(At at, int gate) const {
    const int64_t i = gate * hidden;
    const Vec<T> a = at.load(a_x + i);
    if constexpr (!normalised) return a;
    const Vec<T> x_hat = Normaliser<T>(statistics + 3 * S::of(gate))(a);
    return hn::MulAdd(x_hat, at.load((norm == TermNorm::gates ? parts.gain_hh : parts.gain_ih) + i), at.load(parts.bias + i));
  }
  template <class At>
  HWY_INLINE Vec<T> h(At at, int gate) const {
    const int64_t i = gate * hidden;
    const Vec<T> a = at.load(a_h + i);
    if constexpr (!normalised) return a;
    const Vec<T> x_hat = Normaliser<T>(statistics + 3 * (S::count + S::of(gate)))(a), scaled = hn::Mul(x_hat, at.load(parts.gain_hh + i));
    return cell == Cell::gru ? hn::Add(scaled, at.load(parts.bias_h + i)) : scaled;
  }
  template <class At>
  HWY_INLINE Vec<T> sum(At at, int gate) const {
    if constexpr (two) return hn::Add(x(at, gate), h(at, gate));
    return x(at, gate);
  }

  int64_t hidden;
  const T *a_x, *a_h, *statistics;
  RecurrentParts<T> parts;
};

// From the summed inputs to the gates and c; without K, to h as well, and with K o waits for it in y's place.
template <class T, TermNorm norm>
void lstm_gates(const RecurrentForward<T>& work, const ForwardRow<T>& r) {
  const int64_t hidden = work.spec.hidden;
  const SummedInputs<T, Cell::lstm, norm> in(work, r);
  const bool waits = work.spec.normalise_c;
  for_each_vector<T>(hidden, [&](auto at) HWY_ATTR {
    const Vec<T> i = sigmoid(in.sum(at, 0)), f = sigmoid(in.sum(at, 1)), g = tanh(in.sum(at, 2)), o = sigmoid(in.sum(at, 3));
    if (r.gates) {
      at.store(r.gates, i);
      at.store(r.gates + hidden, f);
      at.store(r.gates + 2 * hidden, g);
      at.store(r.gates + 3 * hidden, o);
    }
    const Vec<T> c = hn::MulAdd(f, at.load(r.c), hn::Mul(i, g));
    at.store(r.c, c);
    if (r.raw_c) at.store(r.raw_c, c);
    if (waits) return at.store(r.y, o);
    const Vec<T> h = hn::Mul(o, tanh(c));
    at.store(r.h, h);
    at.store(r.y, h);
  });
}

template <class T>
void measure_c(const RecurrentForward<T>& work, const ForwardRow<T>* rows, int count) {
  const T* x[kGroup];
  T* statistics[kGroup];
  for (int i = 0; i < kGroup; ++i) {
    const ForwardRow<T>& r = rows[std::min(i, count - 1)];
    x[i] = r.c, statistics[i] = r.statistics + work.spec.statistics() - 3;
  }
  measure_into<kGroup, T>(work.spec, work.spec.hidden, x, statistics);
}

// From c, or K(c) where it was formed already (k), to h; o stands in y.
template <class T>
void lstm_output(const RecurrentForward<T>& work, const ForwardRow<T>& r, const T* k) {
  const auto finish = [&](auto k_at) HWY_ATTR {
    for_each_vector<T>(work.spec.hidden, [&](auto at) HWY_ATTR {
      const Vec<T> h = hn::Mul(at.load(r.y), tanh(k_at(at)));
      at.store(r.h, h);
      at.store(r.y, h);
    });
  };
  if (k) return finish([=](auto at) HWY_ATTR { return at.load(k); });
  const Normaliser<T> x_hat(r.statistics + work.spec.statistics() - 3);
  const T *const gain = work.parts.gain_c, *const bias = work.parts.bias_c;
  finish([&](auto at) HWY_ATTR {
    const Vec<T> normal = hn::MulAdd(x_hat(at.load(r.c)), at.load(gain), at.load(bias));
    if (work.spec.carry) at.store(r.c, normal);
    return normal;
  });
}

template <class T, TermNorm norm>
void lstm_group(const RecurrentForward<T>& work, const ForwardRow<T>* rows, int count) {
  SummedInputs<T, Cell::lstm, norm>::measure(work, rows, count);
  for (int i = 0; i < count; ++i) lstm_gates<T, norm>(work, rows[i]);
  if (norm == TermNorm::columns || !work.spec.normalise_c) return;  // over columns, the output waits for K of all rows
  measure_c(work, rows, count);
  for (int i = 0; i < count; ++i) lstm_output<T>(work, rows[i], nullptr);
}

template <class T, TermNorm norm>
void gru_row(const RecurrentForward<T>& work, const ForwardRow<T>& r) {
  const int64_t hidden = work.spec.hidden;
  const SummedInputs<T, Cell::gru, norm> in(work, r);
  for_each_vector<T>(hidden, [&](auto at) HWY_ATTR {
    const Vec<T> reset = sigmoid(in.sum(at, 0)), z = sigmoid(in.sum(at, 1)), inside = in.h(at, 2);
    const Vec<T> n = tanh(hn::MulAdd(reset, inside, in.x(at, 2)));
    at.store(r.gates, reset);
    at.store(r.gates + hidden, z);
    at.store(r.gates + 2 * hidden, n);
    if (r.n_term) at.store(r.n_term, inside);
    const Vec<T> h = hn::MulAdd(z, at.load(r.h), hn::Mul(hn::Sub(set(T{1}), z), n));
    at.store(r.h, h);
    at.store(r.y, h);
  });
}

template <class T, TermNorm norm>
void rnn_row(const RecurrentForward<T>& work, const ForwardRow<T>& r) {
  const SummedInputs<T, Cell::rnn, norm> in(work, r);
  for_each_vector<T>(work.spec.hidden, [&](auto at) HWY_ATTR {
    const Vec<T> h = tanh(in.sum(at, 0));
    at.store(r.h, h);
    at.store(r.y, h);
  });
}

template <class T, TermNorm norm>
void gru_group(const RecurrentForward<T>& work, const ForwardRow<T>* rows, int count) {
  SummedInputs<T, Cell::gru, norm>::measure(work, rows, count);
  for (int i = 0; i < count; ++i) gru_row<T, norm>(work, rows[i]);
}

template <class T, TermNorm norm>
void rnn_group(const RecurrentForward<T>& work, const ForwardRow<T>* rows, int count) {
  SummedInputs<T, Cell::rnn, norm>::measure(work, rows, count);
  for (int i = 0; i < count; ++i) rnn_row<T, norm>(work, rows[i]);
}

/// Takes up to kGroup rows through the cell.
template <class T>
using GroupFn = void (*)(const RecurrentForward<T>&, const ForwardRow<T>*, int);

template <class T, TermNorm norm>
GroupFn<T> group_of(Cell cell) {
  return cell == Cell::lstm ? lstm_group<T, norm> : cell == Cell::gru ? gru_group<T, norm> : rnn_group<T, norm>;
}

template <class T>
GroupFn<T> group_of(const RecurrentSpec& spec) {
  switch (spec.norm) {
    case TermNorm::none: return group_of<T, TermNorm::none>(spec.cell);
    case TermNorm::terms: return group_of<T, TermNorm::terms>(spec.cell);
    case TermNorm::gates: return lstm_group<T, TermNorm::gates>;
    case TermNorm::columns: break;
  }
  return group_of<T, TermNorm::columns>(spec.cell);
}

template <class T>
ForwardRow<T> row_at(const RecurrentForward<T>& w, int64_t step, int64_t row) {
  const int64_t hidden = w.spec.hidden, width = w.spec.width();
  const auto at = [&](const OverTime<T>& array, int64_t of) { return array.row(w.steps, step, row, of); };
  return {at(w.a_x, width),
          at(w.a_h, width),
          at(w.gates, width),
          w.h + row * hidden,
          w.c ? w.c + row * hidden : nullptr,
          at(w.raw_c, hidden),
          at(w.y, hidden),
          at(w.n_term, hidden),
          at(w.statistics, w.spec.statistics())};
}

template <class T>
void cells(const RecurrentForward<T>& w, GroupFn<T> group, int64_t step, Range rows) {
  for (int64_t begin = rows.begin; begin < rows.end; begin += kGroup) {
    ForwardRow<T> r[kGroup];
    const int count = static_cast<int>(std::min<int64_t>(kGroup, rows.end - begin));
    for (int i = 0; i < count; ++i) r[i] = row_at(w, step, begin + i);
    group(w, r, count);
  }
}

/// A share of the inputs' product of some steps, panel by panel.
template <class T>
void input_product(const RecurrentForward<T>& w, const Share& share, int64_t first, int64_t last) {
  const int64_t width = w.spec.width(), inputs = w.weight_ih->k;
  const T* const bias = w.spec.norm == TermNorm::none ? w.parts.bias : nullptr;
  const auto product = [&](Range rows, Range panels, int64_t step) HWY_ATTR {
    share_of_product<T>(rows, panels, {w.x.row(w.steps, step, 0, inputs), inputs, w.weight_ih},
                        Output<T>{T{0}, w.a_x.row(w.steps, step, 0, width), width, bias}, true);
  };
  if (share.together || share.has_all_rows(w.steps)) {  // these steps' rows stand one after the other
    const int64_t *const offset = w.steps.offset, *const alive = w.steps.alive;
    const int64_t top = offset[first] <= offset[last - 1] ? first : last - 1, bottom = first + last - 1 - top;
    return product({0, offset[bottom] + alive[bottom] - offset[top]}, share.panels, top);
  }
  // Several panels at a time where the inputs would else be split for each.
  const int64_t at_a_time = w.weight_ih->split ? share.panels.end : 1;
  for (int64_t panel = share.panels.begin; panel < share.panels.end; panel += at_a_time)
    for (int64_t step = first; step < last; ++step) product(share.cell_rows(w.steps.alive[step]), {panel, panel + at_a_time}, step);
}

/// Whether the inputs' weight stays in a thread's cache, so that a step's inputs can be multiplied in the step.
template <class T>
bool inputs_by_step(const RecurrentForward<T>& w) {
  constexpr int64_t in_cache = int64_t{1} << 18;  // bytes
  return w.weight_ih && w.weight_ih->k * w.weight_ih->n * static_cast<int64_t>(sizeof(T)) <= in_cache;
}

/// The end of the steps whose inputs a thread multiplies together: one step where the cell can find the product in the thread's cache, too.
template <class T>
int64_t input_end(const RecurrentForward<T>& w, const Share& share, int64_t first) {
  if (!share.together && inputs_by_step(w)) return first + 1;
  int64_t end = first;
  for (int64_t rows = 0; end < w.steps.last && (end == first || rows < w.input_rows); ++end) rows += w.steps.alive[end];
  return end;
}

/// A share of a step's recurrent product; with_inputs: together with the inputs', which is added to it.
template <class T, class Fetch>
void product(const RecurrentForward<T>& w, int64_t step, Range rows, Range panels, bool with_inputs, const Fetch& ahead) {
  const bool zero = step == 0 && w.from_zero, sums = w.spec.sums_terms(), unit = on_matrix_unit(w.steps.alive[step]);
  const int64_t width = w.spec.width(), hidden = w.spec.hidden;
  T* const target = (sums ? w.a_x : w.a_h).row(w.steps, step, 0, width);
  if (with_inputs) {
    const int64_t inputs = w.weight_ih->k;
    const Factors<T> x{w.x.row(w.steps, step, 0, inputs), inputs, w.weight_ih}, h{w.h, hidden, w.weight};
    const Output<T> out{T{0}, target, width, w.spec.norm == TermNorm::none ? w.parts.bias : nullptr};
    return zero ? share_of_product<T>(rows, panels, x, out, unit, ahead) : share_of_products<T>(rows, panels, x, h, out, unit, ahead);
  }
  const T* const bias = w.spec.norm == TermNorm::none && !sums ? w.parts.bias_h : nullptr;
  if (!zero) return share_of_product<T>(rows, panels, {w.h, hidden, w.weight}, Output<T>{sums ? T{1} : T{0}, target, width, bias}, unit, ahead);
  if (sums) return;
  const int64_t begin = panels.begin * kPanel<T>, end = std::min(panels.end * kPanel<T>, width);
  for (int64_t row = rows.begin; row < rows.end; ++row)
    for (int64_t j = begin; j < end; ++j) target[row * width + j] = bias ? bias[j] : T{0};
}

template <class T>
void walk(const RecurrentForward<T>& w) {
  const GroupFn<T> group = group_of<T>(w.spec);
  const bool at_once = w.spec.sums_terms() && inputs_by_step(w);
  detail::parallel_team(team_size(w.spec, w.steps), [&](const detail::Team& team) HWY_ATTR {
    const Share share(team, w.steps, panel_count(*w.weight), least_rows(*w.weight));
    int64_t multiplied = w.steps.first;  // the inputs of the steps before this one are
    for (int64_t step = w.steps.first; step < w.steps.last; ++step) {
      const int64_t alive = w.steps.alive[step];
      if (w.weight_ih && !at_once && step == multiplied) {
        multiplied = input_end(w, share, step);
        input_product(w, share, step, multiplied);
      }
      if (share.together)
        product(w, step, {0, alive}, share.panels, at_once, NoAhead());
      else
        product(w, step, share.cell_rows(alive), share.panels, at_once, NextLines<T>(w, share, step + 1));
      share.meet();
      cells(w, group, step, share.cell_rows(alive));
      share.meet();
    }
  });
}

/// Statistics over the sequences of one step, which normalise x into y.
template <class T>
void normalise_columns(const RecurrentSpec& spec, int64_t rows, int64_t width, int64_t step, const ColumnStatistics<T>& columns, const T* x,
                       const T* gain, const T* bias, T* y) {
  const ChannelNorm channels{.batch = rows, .channels = width, .eps = spec.eps};
  const NormKernels<T>& norm = CpuBackend::norm<T>();
  const int64_t at = step * width;
  T* const shift = spec.given ? nullptr : columns.shift + at;
  if (!spec.given) norm.channel_statistics(channels, x, columns.mean + at, shift, columns.var + at, columns.rstd + at);
  norm.channel_forward(channels, x, columns.mean + at, shift, columns.rstd + at, gain, bias, y);
}

/// Column by column: the products and normalisers of a step with the kernels that there are, then the cells.
template <class T>
void walk_by_columns(const RecurrentForward<T>& w) {
  const int64_t hidden = w.spec.hidden, width = w.spec.width();
  const Scratch<T> x(w.steps.batch * width), h(w.steps.batch * width), k(w.steps.batch * hidden);
  const GroupFn<T> group = group_of<T>(w.spec);
  for (int64_t step = w.steps.first; step < w.steps.last; ++step) {
    const int64_t alive = w.steps.alive[step];
    T* const a_h = w.a_h.row(w.steps, step, 0, width);
    if (step == 0 && w.from_zero)
      std::fill_n(a_h, alive * width, T{0});
    else
      CpuBackend::gemm<T>().gemm(alive, {w.h, hidden, false}, *w.weight, T{0}, a_h, width, nullptr);
    normalise_columns<T>(w.spec, alive, width, step, w.x_columns, w.a_x.row(w.steps, step, 0, width), w.parts.gain_ih, w.parts.bias, x.data());
    normalise_columns<T>(w.spec, alive, width, step, w.h_columns, a_h, w.parts.gain_hh, w.parts.bias_h, h.data());
    const auto for_rows = [&](auto&& f) {
      parallel_for(alive, std::max<int64_t>(1, 4096 / hidden), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          ForwardRow<T> r = row_at(w, step, row);
          r.a_x = x.data() + row * width, r.a_h = h.data() + row * width;
          f(row, r);
        }
      });
    };
    for_rows([&](int64_t, const ForwardRow<T>& r) { group(w, &r, 1); });
    if (w.spec.cell != Cell::lstm) continue;
    normalise_columns<T>(w.spec, alive, hidden, step, w.c_columns, w.c, w.parts.gain_c, w.parts.bias_c, k.data());
    for_rows([&](int64_t row, const ForwardRow<T>& r) { lstm_output<T>(w, r, k.data() + row * hidden); });
  }
}

template <class T>
struct CpuForward final : RecurrentForwardPart<T> {
  void run(const RecurrentForward<T>& work) const override {
    if (work.spec.norm == TermNorm::columns) return walk_by_columns(work);
    walk(work);
  }
};

const RecurrentForwardPart<float>* forward_f32() {
  static const CpuForward<float> part;
  return &part;
}
const RecurrentForwardPart<double>* forward_f64() {
  static const CpuForward<double> part;
  return &part;
}

}  // namespace
}  // namespace lamina::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lamina::kernels {
HWY_EXPORT(forward_f32);
HWY_EXPORT(forward_f64);
template <>
const RecurrentForwardPart<float>& recurrent_forward_part() {
  return *HWY_DYNAMIC_DISPATCH(forward_f32)();
}
template <>
const RecurrentForwardPart<double>& recurrent_forward_part() {
  return *HWY_DYNAMIC_DISPATCH(forward_f64)();
}
}  // namespace lamina::kernels
#endif
