#pragma once
// What the tests of single kernels share: plain vectors in, plain vectors out.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/kernels.h"
#include "support/catch.h"
#include "support/threads.h"

namespace lamina::test {

inline constexpr double infinity = std::numeric_limits<double>::infinity();
inline constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

template <class T>
std::vector<T> random_values(int64_t n, uint64_t seed, double low = -1, double high = 1) {
  std::mt19937_64 generator(seed);
  std::vector<T> values(static_cast<size_t>(n));
  for (T& v : values) v = static_cast<T>(low + (high - low) * static_cast<double>(generator() >> 11) * 0x1p-53);
  return values;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

/// |actual - expected| in units in the last place of `expected`, which is known better than T holds it; 0 for equal infinities and for two NaN.
template <class T>
double ulps(T actual, long double expected) {
  if (std::isnan(actual) || std::isnan(expected)) return std::isnan(actual) && std::isnan(expected) ? 0 : infinity;
  if (std::isinf(actual) || std::isinf(static_cast<T>(expected))) return actual == static_cast<T>(expected) ? 0 : infinity;
  const T size = std::max(std::abs(static_cast<T>(expected)), std::numeric_limits<T>::min());
  const long double unit = static_cast<long double>(std::nextafter(size, std::numeric_limits<T>::infinity())) - size;
  return static_cast<double>(std::abs(static_cast<long double>(actual) - expected) / unit);
}

/// A contiguous broadcast space of one axis, the operands with the given strides.
inline kernels::Broadcast line(int64_t n, int64_t stride_a = 1, int64_t stride_b = 1, int64_t stride_c = 1) {
  kernels::Broadcast space;
  space.rank = 1;
  space.sizes[0] = space.numel = n;
  space.strides[0][0] = stride_a;
  space.strides[1][0] = stride_b;
  space.strides[2][0] = stride_c;
  return space;
}

}  // namespace lamina::test
