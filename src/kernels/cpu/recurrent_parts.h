#pragma once
// The two halves of RecurrentKernels on the CPU, which recurrent.cpp joins, and how threads share a walk.

#include <algorithm>

#include "core/team.h"
#include "kernels/recurrent.h"

namespace lamina::kernels {

template <class T>
struct RecurrentForwardPart {
  virtual ~RecurrentForwardPart() = default;
  virtual void run(const RecurrentForward<T>& work) const = 0;
};
template <class T>
struct RecurrentBackwardPart {
  virtual ~RecurrentBackwardPart() = default;
  virtual void run(const RecurrentBackward<T>& work) const = 0;
};

template <class T>
const RecurrentForwardPart<T>& recurrent_forward_part();  // recurrent_forward.cpp
template <class T>
const RecurrentBackwardPart<T>& recurrent_backward_part();  // recurrent_backward.cpp

template <>
const RecurrentForwardPart<float>& recurrent_forward_part();
template <>
const RecurrentForwardPart<double>& recurrent_forward_part();
template <>
const RecurrentBackwardPart<float>& recurrent_backward_part();
template <>
const RecurrentBackwardPart<double>& recurrent_backward_part();

/// A range, of rows or of blocks.
struct Range {
  int64_t begin, end;
};

/// Rows of all steps whose numbers are in [begin, end).
inline int64_t rows_between(const Steps& steps, int64_t begin, int64_t end) {
  int64_t total = 0;
  for (int64_t s = steps.first; s < steps.last; ++s) total += std::min(end, steps.alive[s]) - std::min(begin, steps.alive[s]);
  return total;
}
inline int64_t total_rows(const Steps& steps) { return rows_between(steps, 0, steps.batch); }

/// Sequences in blocks, by the batch alone: at most kSumParts, of a multiple of 4. Each has partial sums of its own, so that these do not depend on
/// the threads.
struct RowBlocks {
  explicit RowBlocks(int64_t batch) : rows((batch + 4 * kSumParts - 1) / (4 * kSumParts) * 4), count((batch + rows - 1) / rows), batch_(batch) {}
  int64_t rows, count;
  int64_t begin(int64_t block) const { return std::min(block * rows, batch_); }
  /// The blocks of part i of n of some steps: they are cut where the work before is i/n of the whole.
  Range part(const Steps& steps, int64_t i, int64_t n) const { return {cut(steps, i, n), cut(steps, i + 1, n)}; }
  Range rows_of(Range blocks) const { return {begin(blocks.begin), begin(blocks.end)}; }

 private:
  int64_t cut(const Steps& steps, int64_t i, int64_t n) const {
    if (i == n) return count;
    const int64_t goal = total_rows(steps) * i / n;
    int64_t block = 0, before = 0;
    while (block < count && before < goal) {
      const int64_t next = before + rows_between(steps, begin(block), begin(block + 1));
      if (next - goal > goal - before) break;
      before = next;
      ++block;
    }
    return block;
  }

  int64_t batch_;
};

/// One thread's part of a walk. With many sequences a thread takes some of them through all steps and meets nobody; with few, all threads share each
/// step's product by columns, then its cells by rows, and wait for each other after both.
struct Share {
  Share(const detail::Team& team, const Steps& steps, int64_t panel_count, int64_t least_rows)
      : together(team.size() > 1 && total_rows(steps) < least_rows * team.size() * (steps.last - steps.first)), member(&team) {
    const RowBlocks all(steps.batch);
    const int64_t i = team.index(), n = team.size();
    panels = together ? Range{panel_count * i / n, panel_count * (i + 1) / n} : Range{0, panel_count};
    blocks = all.part(steps, i, n);
    rows = all.rows_of(blocks);
  }

  /// The same for other blocks of rows.
  Share of(const RowBlocks& all, Range other) const {
    Share result = *this;
    result.blocks = other;
    result.rows = all.rows_of(other);
    return result;
  }

  Range product_rows(int64_t alive) const { return together ? Range{0, alive} : cell_rows(alive); }
  bool has_all_rows(const Steps& steps) const { return rows.begin == 0 && rows.end == steps.batch; }
  Range cell_rows(int64_t alive) const { return {std::min(rows.begin, alive), std::min(rows.end, alive)}; }
  void meet() const {
    if (together) member->wait();
  }

  bool together;
  Range panels, blocks, rows;

 private:
  const detail::Team* member;
};

/// What a thread reads and writes first in a step, fetched while it multiplies its rows for the step before, a line with each row of the weight: it
/// is in no cache, and a product without much depth would wait for the lines of its result.
template <class T>
class NextLines {
 public:
  NextLines(const RecurrentForward<T>& w, const Share& share, int64_t step) {
    if (step == w.steps.last) return;
    const Range rows = share.cell_rows(w.steps.alive[step]);
    const auto add = [&](const auto& array, int64_t width) {
      const T* const first = array.row(w.steps, step, rows.begin, width);
      if (first && rows.begin < rows.end) runs_[count_++] = {first, first + (rows.end - rows.begin) * width};
    };
    for (const OverTime<T>* array : {&w.a_x, &w.a_h}) add(*array, w.spec.width());
    for (const OverTime<T>* array : {&w.raw_c, &w.y}) add(*array, w.spec.hidden);
    if (w.weight_ih) add(w.x, w.weight_ih->k);
  }

  void fetch(int64_t) const {
    constexpr int64_t line = 64 / static_cast<int64_t>(sizeof(T));
    if (now_ == count_) return;
    Run& run = runs_[now_];
    __builtin_prefetch(run.begin, 0, 2);  // into the second cache: the first is the product's
    run.begin += line;
    if (run.begin >= run.end) ++now_;
  }

 private:
  struct Run {
    const T *begin, *end;
  };
  mutable Run runs_[5];
  mutable int now_ = 0;
  int count_ = 0;
};

/// Threads that a step pays for.
inline int64_t team_size(const RecurrentSpec& spec, const Steps& steps) {
  constexpr int64_t least_work = 65536;  // multiplications a step and thread
  return std::max<int64_t>(1, steps.alive[steps.first] * spec.width() * spec.hidden / least_work);
}

}  // namespace lamina::kernels
