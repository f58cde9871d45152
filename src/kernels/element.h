#pragma once
// Element types: from a DType to a C++ type, and from one type to another as MoveKernels::cast promises.

#include <cstdint>
#include <limits>
#include <type_traits>

#include <lamina/core/dtype.h>

#if defined(__CUDACC__)
#define LAMINA_ANYWHERE __host__ __device__
#else
#define LAMINA_ANYWHERE
#endif

namespace lamina::kernels {

/// Calls f with a value of the element type.
template <class F>
void with_element(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32: return f(float{});
    case DType::f64: return f(double{});
    case DType::i64: return f(int64_t{});
    case DType::u8: return f(uint8_t{});
  }
}

/// As values: device code cannot call std::numeric_limits.
template <class T>
struct Range {
  static constexpr T least = std::numeric_limits<T>::min(), most = std::numeric_limits<T>::max();
};

/// Floats to integers truncate toward zero, saturate, and take NaN to 0; i64 saturates in u8.
template <class To, class From>
LAMINA_ANYWHERE inline To convert(From v) {
  [[maybe_unused]] constexpr To least = Range<To>::least, most = Range<To>::most;
  if constexpr (std::is_integral_v<To> && std::is_floating_point_v<From>) {
    // The limits as From: 2^63 - 1 rounds up to 2^63, which itself does not fit.
    if (v != v) return To(0);
    if (v <= static_cast<From>(least)) return least;
    if (v >= static_cast<From>(most)) return most;
    return static_cast<To>(v);
  } else if constexpr (sizeof(To) < sizeof(From) && std::is_integral_v<To>) {
    return v < From(least) ? least : v > From(most) ? most : static_cast<To>(v);
  } else {
    return static_cast<To>(v);
  }
}

}  // namespace lamina::kernels

#undef LAMINA_ANYWHERE
