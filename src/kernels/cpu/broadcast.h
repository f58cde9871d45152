#pragma once
// Walking a broadcast space run by run along its last axis.

#include <algorithm>
#include <array>

#include <lamina/core/parallel.h>
#include "kernels/elementwise.h"

namespace lamina::kernels::cpu {

/// The last axis: its length and each operand's stride along it.
struct InnerAxis {
  int64_t size = 1;
  std::array<int64_t, 3> strides{};
};
inline InnerAxis inner_axis(const Broadcast& space) {
  InnerAxis inner;
  if (space.rank == 0) return inner;
  const size_t last = static_cast<size_t>(space.rank - 1);
  inner.size = space.sizes[last];
  for (size_t k = 0; k < 3; ++k) inner.strides[k] = space.strides[k][last];
  return inner;
}

/// Offsets of the three operands at a row (all axes but the last), advanced row by row.
class RowCursor {
 public:
  RowCursor(const Broadcast& space, int64_t row) : space_(space) {
    for (int axis = space.rank - 2; axis >= 0; --axis) {
      const size_t a = static_cast<size_t>(axis);
      position_[a] = row % space.sizes[a];
      row /= space.sizes[a];
      for (size_t k = 0; k < 3; ++k) offsets_[k] += position_[a] * space.strides[k][a];
    }
  }

  const std::array<int64_t, 3>& offsets() const { return offsets_; }

  void next() {
    for (int axis = space_.rank - 2; axis >= 0; --axis) {
      const size_t a = static_cast<size_t>(axis);
      const bool carry = ++position_[a] == space_.sizes[a];
      const int64_t steps = carry ? 1 - space_.sizes[a] : 1;
      if (carry) position_[a] = 0;
      for (size_t k = 0; k < 3; ++k) offsets_[k] += steps * space_.strides[k][a];
      if (!carry) return;
    }
  }

 private:
  const Broadcast& space_;
  std::array<int64_t, 6> position_{};
  std::array<int64_t, 3> offsets_{};
};

/// Calls f(z, count, offsets) for runs of `count` consecutive outputs from output z on, with the operands' offsets at the run's start.
template <class F>
void for_each_run(const Broadcast& space, int64_t grain, F&& f) {
  if (space.numel == 0) return;
  const InnerAxis inner = inner_axis(space);
  parallel_for(space.numel, grain, [&](int64_t begin, int64_t end) {
    RowCursor cursor(space, begin / inner.size);
    int64_t column = begin % inner.size;
    for (int64_t z = begin; z < end; cursor.next(), column = 0) {
      const int64_t count = std::min(inner.size - column, end - z);
      std::array<int64_t, 3> offsets = cursor.offsets();
      for (size_t k = 0; k < 3; ++k) offsets[k] += column * inner.strides[k];
      f(z, count, offsets);
      z += count;
    }
  });
}

// How an operand moves along a run, for the compiler to know where it matters.
enum class Step { one, none, other };
inline Step step_of(int64_t stride) { return stride == 1 ? Step::one : stride == 0 ? Step::none : Step::other; }

template <Step step>
int64_t at_step(int64_t i, int64_t stride) {
  return step == Step::one ? i : step == Step::none ? 0 : i * stride;
}

/// Calls f with the steps of two operands as template arguments.
template <class F>
void with_steps(int64_t stride_a, int64_t stride_b, F&& f) {
  const Step a = step_of(stride_a), b = step_of(stride_b);
  if (a == Step::one && b == Step::one) return f.template operator()<Step::one, Step::one>();
  if (a == Step::one && b == Step::none) return f.template operator()<Step::one, Step::none>();
  if (a == Step::none && b == Step::one) return f.template operator()<Step::none, Step::one>();
  f.template operator()<Step::other, Step::other>();
}

}  // namespace lamina::kernels::cpu
