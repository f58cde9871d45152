#pragma once
// Bounds of T as values: device code cannot call std::numeric_limits.

#include <limits>

namespace lamina::kernels::cuda {

template <class T>
struct Bounds {
  static constexpr double most = static_cast<double>(std::numeric_limits<T>::max()), least = static_cast<double>(std::numeric_limits<T>::min());
  static constexpr double trustworthy = least / static_cast<double>(std::numeric_limits<T>::epsilon());  // smaller squares lose digits
  static constexpr double infinity = std::numeric_limits<double>::infinity();
  static constexpr T infinite = std::numeric_limits<T>::infinity();
  static constexpr T not_a_number = std::numeric_limits<T>::quiet_NaN();
};

}  // namespace lamina::kernels::cuda
