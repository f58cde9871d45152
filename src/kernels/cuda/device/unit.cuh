#pragma once
// What carries bytes without looking at them: the widest unit that all addresses, widths and pitches of a copy allow.

#include "kernels/cuda/launch.h"

namespace lamina::kernels::cuda {

struct alignas(16) Bytes16 {
  uint64_t low, high;
};

/// f.operator()<Unit>() with the widest of 16, 8, 4 and 1 bytes that divides all of `positions` (addresses and numbers of bytes, or'ed together).
template <class F>
void with_unit(uint64_t positions, F&& f) {
  if (positions % 16 == 0) return f.template operator()<Bytes16>();
  if (positions % 8 == 0) return f.template operator()<uint64_t>();
  if (positions % 4 == 0) return f.template operator()<uint32_t>();
  f.template operator()<uint8_t>();
}
inline uint64_t address(const void* p) { return reinterpret_cast<uintptr_t>(p); }

}  // namespace lamina::kernels::cuda
