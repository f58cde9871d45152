#pragma once
// Comparing tensors with expected values. One number is the tolerance: |actual - expected| <= tolerance * max(1, |expected|).

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <string>
#include <vector>

#include <lamina/core/tensor.h>

#include "support/catch.h"
#include "support/make.h"

namespace lamina::test {

/// Moves, comparisons, counts, and sums of small integers have no rounding.
inline constexpr double exact = 0.0;
/// Short chains of f64 operations: some tens of units in the last place (2e-16).
inline constexpr double f64_rounding = 1e-13;
/// Short chains of f32 operations: a unit in the last place is 1.2e-7 of the value, functions such as exp and tanh are good to about 2 of them.
inline constexpr double f32_rounding = 1e-6;
/// f32 sums and products over up to some thousand terms of order 1: rounding grows with the root of the count.
inline constexpr double f32_sum = 1e-5;
/// Expected values written with six significant digits.
inline constexpr double six_digits = 2e-6;

/// All elements as double, whatever the dtype.
inline std::vector<double> values(const Tensor& x) {
  return with_type(x.dtype(), [&](auto zero) {
    const auto elements = x.to_vector<decltype(zero)>();
    return std::vector<double>(elements.begin(), elements.end());
  });
}

/// |a - b| / max(1, |b|); equal infinities and two NaN count as equal, one NaN as infinitely far.
inline double difference(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  const double d = std::abs(a - b) / std::max(1.0, std::abs(b));
  return std::isfinite(d) ? d : HUGE_VAL;
}

/// The largest difference() of two tensors of one shape; infinite when the shapes differ.
inline double max_difference(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape()) return HUGE_VAL;
  const auto x = values(a), y = values(b);
  double largest = 0;
  for (size_t i = 0; i < x.size(); ++i) largest = std::max(largest, difference(x[i], y[i]));
  return largest;
}

/// CHECKs that `actual` holds `expected` (row-major); the message names the first element that is off.
inline void check_close(const Tensor& actual, const std::vector<double>& expected, double tolerance = f32_rounding) {
  REQUIRE(actual.defined());
  const auto have = values(actual);
  REQUIRE(have.size() == expected.size());
  std::string off;
  for (size_t i = 0; i < have.size() && off.empty(); ++i)
    if (difference(have[i], expected[i]) > tolerance)
      off = "element " + std::to_string(i) + ": expected " + std::to_string(expected[i]) + " (" + Catch::Detail::stringify(expected[i]) + "), got " +
            std::to_string(have[i]) + " in " + actual.str();
  CHECK(off == "");
}

inline void check_close(const Tensor& actual, std::initializer_list<double> expected, double tolerance = f32_rounding) {
  check_close(actual, std::vector<double>(expected), tolerance);
}

/// The same against a tensor, shape included.
inline void check_close(const Tensor& actual, const Tensor& expected, double tolerance = f32_rounding) {
  REQUIRE(actual.defined());
  REQUIRE(expected.defined());
  REQUIRE(actual.shape().str() == expected.shape().str());
  check_close(actual, values(expected), tolerance);
}

/// Whether the two hold the same bytes.
inline bool same_bits(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) return false;
  return with_type(a.dtype(), [&](auto zero) {
    const auto x = a.to_vector<decltype(zero)>(), y = b.to_vector<decltype(zero)>();
    return x.empty() || std::memcmp(x.data(), y.data(), x.size() * sizeof(zero)) == 0;
  });
}

inline double norm_of(const Tensor& x) {
  double sum = 0;
  for (const double v : values(x)) sum += v * v;
  return std::sqrt(sum);
}

}  // namespace lamina::test
