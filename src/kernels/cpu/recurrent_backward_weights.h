// Included once per SIMD target (see simd.h): the products for the gradients of a recurrent layer's weights, within the backward walk.

#if defined(LAMINA_KERNELS_CPU_RECURRENT_BACKWARD_WEIGHTS_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LAMINA_KERNELS_CPU_RECURRENT_BACKWARD_WEIGHTS_H
#undef LAMINA_KERNELS_CPU_RECURRENT_BACKWARD_WEIGHTS_H
#else
#define LAMINA_KERNELS_CPU_RECURRENT_BACKWARD_WEIGHTS_H
#endif

#include <array>
#include <optional>
#include <type_traits>

#include "core/matrix_unit.h"
#include "kernels/cpu/recurrent_simd.h"
#include "kernels/cpu/scratch.h"

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels::HWY_NAMESPACE {
namespace {

/// Adds up da^T h and da^T x of some steps at a time, while da is in the caches of the threads that computed it. The sequences are cut in two, with
/// sums of their own, whatever the threads: two threads take a part each and need not meet, others share out the panels of both.
template <class T>
class WeightProducts {
 public:
  WeightProducts(const RecurrentBackward<T>& w, const RowBlocks& blocks)
      : w_(w),
        hidden_panels_(w.dw_hh ? panels(w.spec.hidden) : 0),
        input_panels_(w.dw_ih ? panels(w.inputs) : 0),
        hidden_size_(w.dw_hh ? w.spec.width() * w.spec.hidden : 0),
        input_size_(w.dw_ih ? w.spec.width() * w.inputs : 0),
        on_unit_(std::is_same_v<T, float> && lamina::detail::has_matrix_unit()),
        second_(hidden_size_ + input_size_) {
    for (int64_t part = 0; part < kParts; ++part) {
      blocks_[part] = blocks.part(w.steps, part, kParts);
      rows_[part] = blocks.rows_of(blocks_[part]);
    }
  }

  /// The parts that a member of a team takes alone, where they can be shared out so.
  static std::optional<Range> parts_of(const detail::Team& team) {
    if (kParts % team.size() != 0) return std::nullopt;
    return Range{kParts / team.size() * team.index(), kParts / team.size() * (team.index() + 1)};
  }
  Range blocks(int64_t part) const { return blocks_[part]; }

  /// Panels of sums (on the processor's matrix unit blocks of as many rows), those of one part after the other's: a part's, and a member's share of
  /// all.
  Range units(int64_t part) const { return {part * units_of_part(), (part + 1) * units_of_part()}; }
  Range units(const detail::Team& team) const {
    const int64_t all = kParts * units_of_part();
    return {all * team.index() / team.size(), all * (team.index() + 1) / team.size()};
  }

  /// Some units, if with this step there are as many steps as are taken together, or no more.
  void multiply(int64_t step, Range units) const {
    if (step % w_.in_walk != 0 && step != w_.steps.first) return;
    const int64_t end = std::min(w_.steps.last, (step / w_.in_walk + 1) * w_.in_walk);
    if constexpr (std::is_same_v<T, float>)
      if (on_unit_) return multiply_on_unit({step, end}, units);
    for (int64_t unit = units.begin; unit < units.end; ++unit) {
      const int64_t part = unit / units_of_part(), panel = unit % units_of_part();
      if (panel < hidden_panels_)
        add_hidden({step, end}, part, panel);
      else
        add_input({step, end}, part, panel - hidden_panels_);
    }
  }

  /// A member's share of adding up the parts, after the last step, when all are there.
  void finish(const detail::Team& team) const {
    add_second(w_.dw_hh, second_.data(), hidden_size_, team);
    add_second(w_.dw_ih, second_.data() + hidden_size_, input_size_, team);
  }

 private:
  static constexpr int64_t kParts = 2, kDepth = 256;
  static int64_t panels(int64_t columns) { return (columns + kPanel<T> - 1) / kPanel<T>; }
  int64_t units_of_part() const { return on_unit_ ? panels(w_.spec.width()) : hidden_panels_ + input_panels_; }

  void add_hidden(Range steps, int64_t part, int64_t panel) const {
    const int64_t hidden = w_.spec.hidden;
    const OverTime<T>& da = w_.spec.one_gradient() ? w_.da_x : w_.da_h;
    T* const sums = part == 0 ? w_.dw_hh : second_.data();
    add(steps, part, panel, da, hidden, sums, [&](int64_t step) { return state_before(step); });
  }
  const T* state_before(int64_t step) const { return step > 0 ? w_.y.row(w_.steps, step - 1, 0, w_.spec.hidden) : w_.from_zero ? nullptr : w_.h0; }
  void add_input(Range steps, int64_t part, int64_t panel) const {
    T* const sums = part == 0 ? w_.dw_ih : second_.data() + hidden_size_;
    add(steps, part, panel, w_.da_x, w_.inputs, sums, [&](int64_t step) { return w_.x.row(w_.steps, step, 0, w_.inputs); });
  }

  // Sums are set at the first steps of a walk, unless they go on.
  bool sets(Range steps, int64_t part) const { return steps.end == w_.steps.last && !(part == 0 && w_.goes_on); }

  // A panel of sums (+)= da^T values of a part's rows.
  template <class Values>
  void add(Range steps, int64_t part, int64_t panel, const OverTime<T>& da, int64_t columns, T* sums, Values&& values_at) const {
    constexpr size_t most = 16;
    HWY_ALIGN T packed[kDepth * kPanel<T>];
    Source<T> sources[most];
    size_t count = 0;
    int64_t depth = 0;
    bool set = sets(steps, part);
    const int64_t width = w_.spec.width(), column = panel * kPanel<T>;
    const auto multiply = [&]() HWY_ATTR {
      times_panels<true, T>(width, {sources, count}, column, columns, Output<T>{set ? T{0} : T{1}, sums, columns, nullptr});
      set = false, count = 0, depth = 0;
    };
    for (int64_t step = steps.begin; step < steps.end; ++step) {
      const T *const values = values_at(step), *const gradients = da.row(w_.steps, step, 0, width);
      const int64_t end = values ? std::min(rows_[part].end, w_.steps.alive[step]) : 0;
      for (int64_t top = rows_[part].begin; top < end;) {
        const int64_t rows = std::min(end - top, kDepth - depth);
        T* const room = packed + depth * kPanel<T>;
        pack_panel<T>({values, columns, false}, top, rows, column, columns, room);
        sources[count++] = {gradients + top * width, 1, width, rows, room};
        depth += rows, top += rows;
        if (depth == kDepth || count == most) multiply();
      }
    }
    if (count > 0 || set) multiply();
  }

  void multiply_on_unit(Range steps, Range units) const {
    const auto some = [&](int64_t part) {
      const int64_t first = part * units_of_part();
      return Range{std::clamp<int64_t>(units.begin - first, 0, units_of_part()), std::clamp<int64_t>(units.end - first, 0, units_of_part())};
    };
    for (int64_t part = 0; part < kParts; ++part) {
      const Range blocks = some(part);
      if (blocks.begin >= blocks.end) continue;
      const float beta = sets(steps, part) ? 0.0F : 1.0F;
      const cpu::SplitSums hidden{w_.spec.hidden, beta, part == 0 || !w_.dw_hh ? w_.dw_hh : second_.data()};
      const cpu::SplitSums input{w_.inputs, beta, part == 0 || !w_.dw_ih ? w_.dw_ih : second_.data() + hidden_size_};
      if (w_.spec.one_gradient()) {
        add_on_unit(steps, part, blocks, w_.da_x, {{hidden, input}});
        continue;
      }
      if (hidden.c) add_on_unit(steps, part, blocks, w_.da_h, {{hidden, {}}});
      if (input.c) add_on_unit(steps, part, blocks, w_.da_x, {{{}, input}});
    }
  }

  // Blocks of the sums (+)= da^T values of a part's rows.
  void add_on_unit(Range steps, int64_t part, Range blocks, const OverTime<float>& da, std::array<cpu::SplitSums, 2> sums) const {
    constexpr size_t most = 16;
    cpu::SplitTerms terms[most];
    size_t count = 0;
    int64_t depth = 0;
    const int64_t width = w_.spec.width();
    bool any = false;
    const auto multiply = [&] {
      cpu::split_sums(blocks.begin, blocks.end, {terms, count}, width, sums);
      for (cpu::SplitSums& of : sums) of.beta = 1;
      count = 0, depth = 0, any = true;
    };
    for (int64_t step = steps.begin; step < steps.end; ++step) {
      const float *const a = da.row(w_.steps, step, 0, width), *const h = sums[0].c ? state_before(step) : nullptr;
      const float* const x = sums[1].c ? w_.x.row(w_.steps, step, 0, w_.inputs) : nullptr;
      const int64_t end = std::min(rows_[part].end, w_.steps.alive[step]);
      for (int64_t top = rows_[part].begin; top < end;) {
        const int64_t rows = std::min(end - top, kDepth - depth);
        terms[count++] = {a + top * width, {h ? h + top * w_.spec.hidden : nullptr, x ? x + top * w_.inputs : nullptr}, rows};
        depth += rows, top += rows;
        if (depth == kDepth || count == most) multiply();
      }
    }
    if (count > 0 || !any) multiply();
  }

  void add_second(T* sums, const T* second, int64_t size, const detail::Team& team) const {
    const int64_t begin = size * team.index() / team.size(), end = size * (team.index() + 1) / team.size();
    if (begin == end) return;
    for_each_vector<T>(end - begin, [&](auto at) HWY_ATTR { at.store(sums + begin, hn::Add(at.load(sums + begin), at.load(second + begin))); });
  }

  const RecurrentBackward<T>& w_;
  int64_t hidden_panels_, input_panels_, hidden_size_, input_size_;
  bool on_unit_;
  Scratch<T> second_;
  Range blocks_[kParts] = {}, rows_[kParts] = {};
};

}  // namespace
}  // namespace lamina::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LAMINA_KERNELS_CPU_RECURRENT_BACKWARD_WEIGHTS_H
