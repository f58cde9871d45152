#pragma once
// From one element type to another, as MoveKernels::cast promises: floats to integers truncate toward zero, saturate, and take NaN to 0.

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/launch.h"

namespace lamina::kernels::cuda {

template <class T>
struct IntegerRange;
template <>
struct IntegerRange<int64_t> {
  static constexpr int64_t least = INT64_MIN, most = INT64_MAX;
};
template <>
struct IntegerRange<uint8_t> {
  static constexpr uint8_t least = 0, most = UINT8_MAX;
};

template <class To, class From>
__host__ __device__ inline To convert(From v) {
  if constexpr (std::is_integral_v<To> && std::is_floating_point_v<From>) {
    using Range = IntegerRange<To>;
    // The limits as From: 2^63 - 1 rounds up to 2^63, which itself does not fit.
    if (v != v) return To(0);
    if (v <= static_cast<From>(Range::least)) return Range::least;
    if (v >= static_cast<From>(Range::most)) return Range::most;
    return static_cast<To>(v);
  } else if constexpr (std::is_same_v<To, uint8_t> && std::is_same_v<From, int64_t>) {
    return static_cast<uint8_t>(v < 0 ? 0 : v > 255 ? 255 : v);
  } else {
    return static_cast<To>(v);
  }
}

}  // namespace lamina::kernels::cuda
