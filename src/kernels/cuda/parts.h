#pragma once
// Cutting a broadcast space into parts that 32-bit numbers can address, so that kernels need no 64-bit division. Host code alone.

#include <algorithm>
#include <array>
#include <cstdint>

#include "kernels/elementwise.h"

namespace lamina::kernels::cuda {

constexpr int64_t most_narrow = INT32_MAX;

/// Whether all positions in the output and the operands fit.
inline bool is_narrow(const Broadcast& space) {
  if (space.numel > most_narrow) return false;
  for (const auto& strides : space.strides) {
    int64_t last = 0;
    for (size_t axis = 0; axis < static_cast<size_t>(space.rank); ++axis) last += (space.sizes[axis] - 1) * strides[axis];
    if (last > most_narrow) return false;
  }
  return true;
}

/// Calls f(part, where the operands begin, where the output begins) for narrow parts that make up the space, in elements. Parts of a line begin at
/// multiples of 16, so that they are aligned as the whole.
template <class F>
void in_parts(const Broadcast& space, F&& f, std::array<int64_t, 3> from = {}, int64_t to = 0) {
  if (space.numel == 0) return;
  if (is_narrow(space)) return f(space, from, to);
  const int64_t size = space.sizes[0], below = space.numel / size;
  const auto advanced = [&](int64_t steps) {
    std::array<int64_t, 3> at = from;
    for (size_t k = 0; k < 3; ++k) at[k] += steps * space.strides[k][0];
    return at;
  };
  Broadcast part = space;
  int64_t steps = size;
  while (steps > 1 && !is_narrow(part)) {
    steps = steps > 32 ? steps / 2 / 16 * 16 : steps / 2;
    part.sizes[0] = steps;
    part.numel = steps * below;
  }
  if (is_narrow(part)) {
    for (int64_t begin = 0; begin < size; begin += steps) {
      part.sizes[0] = std::min(steps, size - begin);
      part.numel = part.sizes[0] * below;
      f(part, advanced(begin), to + begin * below);
    }
    return;
  }
  part.rank = space.rank - 1;
  part.numel = below;
  std::copy(space.sizes.begin() + 1, space.sizes.end(), part.sizes.begin());
  for (size_t k = 0; k < 3; ++k) std::copy(space.strides[k].begin() + 1, space.strides[k].end(), part.strides[k].begin());
  for (int64_t i = 0; i < size; ++i) in_parts(part, f, advanced(i), to + i * below);
}

/// A space of one axis, every operand dense.
inline Broadcast line_of(int64_t n) {
  Broadcast space;
  space.rank = 1;
  space.sizes[0] = space.numel = n;
  for (auto& strides : space.strides) strides[0] = 1;
  return space;
}

}  // namespace lamina::kernels::cuda
