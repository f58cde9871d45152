#pragma once
// From the number of an element to its place in each operand of a broadcast space.

#include "kernels/cuda/launch.h"
#include "kernels/cuda/parts.h"

namespace lamina::kernels::cuda {

/// Division of numbers below 2^31 by one that the host knows, as a multiplication and a shift (Granlund and Montgomery, 1994).
struct Divider {
  Divider() = default;
  explicit Divider(int64_t by) : divisor(static_cast<uint32_t>(by)) {
    while ((uint64_t{1} << shift) < divisor) ++shift;
    multiplier = static_cast<uint32_t>(((uint64_t{1} << 32) * ((uint64_t{1} << shift) - divisor)) / divisor + 1);
  }
  __device__ uint32_t quotient(uint32_t n) const { return (static_cast<uint32_t>((uint64_t{n} * multiplier) >> 32) + n) >> shift; }

  uint32_t divisor = 1, multiplier = 1, shift = 0;
};

/// The same where dividends up to `most` may be too large for that: then it is a true division.
struct WideDivider {
  WideDivider(int64_t by, int64_t most) : divisor(by), narrow(most <= most_narrow && by <= most_narrow), fast(narrow ? by : 1) {}
  __device__ int64_t quotient(int64_t n) const { return narrow ? fast.quotient(static_cast<uint32_t>(n)) : n / divisor; }

  int64_t divisor;
  bool narrow;
  Divider fast;
};

/// A narrow Broadcast for kernels: row-major over chunks of `vec` outputs along the last axis. Innermost axis first.
template <int operands>
struct Space {
  static constexpr int most_axes = 6;

  Space(const Broadcast& from, int vec) : rank(from.rank > 0 ? from.rank : 1), size(static_cast<uint32_t>(from.numel)) {
    for (int axis = 0; axis < from.rank; ++axis) {
      const auto i = static_cast<size_t>(from.rank - 1 - axis);
      const int64_t unit = axis == 0 ? vec : 1;
      sizes[axis] = Divider((from.sizes[i] + unit - 1) / unit);
      for (int k = 0; k < operands; ++k) strides[k][axis] = static_cast<uint32_t>(from.strides[static_cast<size_t>(k)][i] * unit);
    }
    chunks = static_cast<uint32_t>(from.rank > 1 ? from.numel / vec : (from.numel + vec - 1) / vec);
  }

  /// Where the operands of chunk `index` begin.
  __device__ void locate(uint32_t index, uint32_t (&at)[operands]) const {
    for (int k = 0; k < operands; ++k) at[k] = 0;
#pragma unroll
    for (int axis = 0; axis < most_axes; ++axis) {
      if (axis >= rank) break;
      const uint32_t rest = axis + 1 < rank ? sizes[axis].quotient(index) : 0;
      const uint32_t position = index - rest * sizes[axis].divisor;
      for (int k = 0; k < operands; ++k) at[k] += position * strides[k][axis];
      index = rest;
    }
  }

  int rank;
  uint32_t size, chunks;  // outputs, and chunks of them; of one axis, the last chunk may be cut short
  Divider sizes[most_axes];
  uint32_t strides[operands][most_axes] = {};
};

/// Whether every chunk of vec outputs is one of vec elements, or a single one, of operand k, which begins at p.
template <int vec, class T>
bool chunks_fit(const Broadcast& space, size_t k, const T* p) {
  if (space.rank == 0) return false;
  const auto last = static_cast<size_t>(space.rank - 1);
  if (space.strides[k][last] == 0) return true;
  if (space.strides[k][last] != 1 || reinterpret_cast<uintptr_t>(p) % (vec * sizeof(T)) != 0) return false;
  for (size_t axis = 0; axis < last; ++axis)
    if (space.strides[k][axis] % vec != 0) return false;
  return true;
}

}  // namespace lamina::kernels::cuda
