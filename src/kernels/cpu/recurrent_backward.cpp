// The backward walk of a recurrent layer; recurrent_backward_cells.h has its cells.

#include <algorithm>
#include <optional>

#include <lamina/core/parallel.h>
#include "kernels/cpu/recurrent_parts.h"
#include "kernels/cpu/scratch.h"
#include "kernels/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/recurrent_backward.cpp"
#include <hwy/foreach_target.h>

#include "kernels/cpu/recurrent_backward_cells.h"
#include "kernels/cpu/recurrent_backward_weights.h"
#include "kernels/cpu/recurrent_simd.h"

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels::HWY_NAMESPACE {
namespace {

/// Takes up to kGroup rows through the cell.
template <class T>
using GroupFn = void (*)(const RecurrentBackward<T>&, const BackwardRow<T>*, int, T*);

template <class T, TermNorm norm>
GroupFn<T> group_of(Cell cell) {
  return cell == Cell::lstm ? lstm_group<T, norm> : cell == Cell::gru ? gru_group<T, norm> : rnn_group<T, norm>;
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
  if (w.spec.cell != Cell::gru) r.pre_h = r.pre_x;
  return r;
}

/// Partial sums of a walk, a set for each block of rows.
template <class T>
class BlockSums {
 public:
  BlockSums(const RecurrentBackward<T>& w, const RowBlocks& blocks)
      : count_(w.sums ? RecurrentSums(w.spec).count : 0),
        blocks_(blocks),
        own_(w.sum_parts ? 0 : blocks.count * count_),
        parts_(w.sum_parts ? w.sum_parts : own_.data()) {
    if (!w.sum_parts) std::fill_n(parts_, blocks.count * count_, T{0});
  }
  T* of(int64_t block) const { return count_ ? parts_ + block * count_ : nullptr; }
  /// Whether they are to be added up after these steps: at the end of the pass, and before a sum gets long. (Steps come from the last to the first.)
  bool due(const RecurrentBackward<T>& w) const {
    constexpr int64_t longest = 1024;
    return count_ > 0 && (!w.sum_parts || w.steps.first == 0 || w.steps.first * blocks_.rows / longest != w.steps.last * blocks_.rows / longest);
  }
  /// A member's share of adding them up, when all are there.
  void add_into(T* sums, const detail::Team& team) const {
    constexpr int64_t piece = 64;
    const int64_t begin = count_ * team.index() / team.size(), end = count_ * (team.index() + 1) / team.size();
    for (int64_t at = begin; at < end; at += piece) {
      const int64_t n = std::min(piece, end - at);
      double totals[piece];
      for (int64_t i = 0; i < n; ++i) totals[i] = static_cast<double>(sums[at + i]);
      for (int64_t block = 0; block < blocks_.count; ++block) {
        T* const part = of(block) + at;
        for (int64_t i = 0; i < n; ++i) totals[i] += static_cast<double>(part[i]);
        std::fill_n(part, n, T{0});
      }
      for (int64_t i = 0; i < n; ++i) sums[at + i] = static_cast<T>(totals[i]);
    }
  }

 private:
  int64_t count_;
  RowBlocks blocks_;
  Scratch<T> own_;
  T* parts_;
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

/// Asks for what the first rows of a step need: within a step each group asks for the next one.
template <class T>
void fetch_first(const RecurrentBackward<T>& w, int64_t step, Range rows) {
  constexpr int64_t line = 64 / static_cast<int64_t>(sizeof(T));
  const auto fetch = [&](const OverTime<const T>& array, int64_t at_step, int64_t width) {
    const int64_t count = std::min<int64_t>(kGroup, rows.end - rows.begin) * width;
    const T* const first = array.row(w.steps, at_step, rows.begin, width);
    if (first)
      for (int64_t i = 0; i < count; i += line) hwy::Prefetch(first + i);
  };
  for (const OverTime<const T>* array : {&w.a_x, &w.a_h, &w.gates}) fetch(*array, step, w.spec.width());
  for (const OverTime<const T>* array : {&w.raw_c, &w.dy}) fetch(*array, step, w.spec.hidden);
  if (step > 0) fetch(w.raw_c, step - 1, w.spec.hidden);
}

/// What a step's gradients of the summed inputs are multiplied with, but for the weights' gradients: a member's share.
template <class T>
void state_products(const RecurrentBackward<T>& w, const Share& share, int64_t step) {
  const int64_t hidden = w.spec.hidden, width = w.spec.width(), alive = w.steps.alive[step];
  const OverTime<T>& da = w.spec.one_gradient() ? w.da_x : w.da_h;
  const Output<T> dh{w.spec.cell == Cell::gru ? T{1} : T{0}, w.dh, hidden, nullptr};
  const bool unit = on_matrix_unit(alive);
  if (step > 0 || w.to_start)
    share_of_product<T>(share.product_rows(alive), share.panels, {da.row(w.steps, step, 0, width), width, w.weight}, dh, unit);
  if (!w.weight_ih) return;
  share_of_product<T>(share.cell_rows(alive), {0, panel_count(*w.weight_ih)}, {w.da_x.row(w.steps, step, 0, width), width, w.weight_ih},
                      Output<T>{T{0}, w.dx.row(w.steps, step, 0, w.inputs), w.inputs, nullptr}, unit);
}

template <class T>
class Walk {
 public:
  explicit Walk(const RecurrentBackward<T>& w) : w_(w), group_(group_of<T>(w.spec)), blocks_(w.steps.batch), sums_(w, blocks_) {
    if (w.in_walk) weights_.emplace(w, blocks_);
  }

  /// A member's part.
  void operator()(const detail::Team& team) const {
    const Share share(team, w_.steps, panel_count(*w_.weight), least_rows(*w_.weight));
    if (weights_ && !share.together && weights_->parts_of(team)) {
      const Range parts = *weights_->parts_of(team);
      for (int64_t part = parts.begin; part < parts.end; ++part) steps(share.of(blocks_, weights_->blocks(part)), weights_->units(part), nullptr);
    } else {
      steps(share, weights_ ? weights_->units(team) : Range{0, 0}, share.together || weights_ ? &team : nullptr);
    }
    const bool due = sums_.due(w_);
    if (due || weights_) team.wait();
    if (due) sums_.add_into(w_.sums, team);
    if (weights_) weights_->finish(team);
  }

 private:
  // `team`: those who meet after the cells and after the products of a step.
  void steps(const Share& share, Range units, const detail::Team* team) const {
    for (int64_t step = w_.steps.last - 1; step >= w_.steps.first; --step) {
      const int64_t alive = w_.steps.alive[step];
      for (int64_t block = share.blocks.begin; block < share.blocks.end; ++block)
        cells(w_, group_, step, {blocks_.begin(block), std::min(alive, blocks_.begin(block + 1))}, sums_.of(block));
      if (step > 0) fetch_first(w_, step - 1, share.cell_rows(w_.steps.alive[step - 1]));
      if (team) team->wait();
      state_products(w_, share, step);
      if (weights_) weights_->multiply(step, units);
      if (team) team->wait();
    }
  }

  const RecurrentBackward<T>& w_;
  GroupFn<T> group_;
  RowBlocks blocks_;
  BlockSums<T> sums_;
  std::optional<WeightProducts<T>> weights_;
};

template <class T>
void walk(const RecurrentBackward<T>& w) {
  const Walk<T> walk(w);
  detail::parallel_team(team_size(w.spec, w.steps), [&](const detail::Team& team) { walk(team); });
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
    else if (work_.spec.cell == Cell::gru)
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
  const bool lstm = w.spec.cell == Cell::lstm, gru = w.spec.cell == Cell::gru;
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
        const GateSource<T, TermNorm::none> source(w, r);
        for_each_vector<T>(hidden, [&](auto v) HWY_ATTR {
          const Vec<T> dh_at = hn::Add(v.load(r.dy), v.load(r.dh));
          v.store(r.dh, argument_gradient(source, v, v.load(k_row), dh_at, nullptr));
        });
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
