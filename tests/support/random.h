#pragma once
// Test inputs. Drawn on the host from Rng alone, so that tests of kernels do not lean on the random kernels; they lie
// on the device of the tests.

#include <cmath>
#include <numbers>
#include <vector>

#include <lamina/core/random.h>

#include "support/make.h"

namespace lamina::test {

namespace detail {
template <class Draw>
Tensor drawn(const Shape& shape, DType dtype, Draw&& draw) {
  return with_float("test", dtype, [&](auto zero) {
    std::vector<decltype(zero)> values(static_cast<size_t>(shape.numel()));
    for (auto& value : values) value = static_cast<decltype(zero)>(draw());
    return tensor(values, shape);
  });
}
}  // namespace detail

/// Standard normal values.
inline Tensor normal(const Shape& shape, uint64_t seed, DType dtype = DType::f32, double mean = 0, double std = 1) {
  Rng rng = Rng(seed).stream("test normal");
  return detail::drawn(shape, dtype, [&] {
    const double u = 1 - rng.uniform(), v = rng.uniform();
    return mean + std * std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
  });
}

inline Tensor uniform(const Shape& shape, uint64_t seed, double low, double high, DType dtype = DType::f32) {
  Rng rng = Rng(seed).stream("test uniform");
  return detail::drawn(shape, dtype, [&] { return low + (high - low) * rng.uniform(); });
}

/// Uniform in [-high, -low] and [low, high]: away from a kink or a pole at 0.
inline Tensor away_from_zero(const Shape& shape, uint64_t seed, double low = 0.1, double high = 2, DType dtype = DType::f32) {
  Rng rng = Rng(seed).stream("test away from zero");
  return detail::drawn(shape, dtype, [&] {
    const double magnitude = low + (high - low) * rng.uniform();
    return rng.below(2) ? magnitude : -magnitude;
  });
}

/// Distinct values in random order, `gap` apart around 0: no two are near a tie.
inline Tensor distinct(const Shape& shape, uint64_t seed, double gap = 0.1, DType dtype = DType::f32) {
  Rng rng = Rng(seed).stream("test distinct");
  const int64_t n = shape.numel();
  std::vector<int64_t> order(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) order[static_cast<size_t>(i)] = i;
  for (int64_t i = n - 1; i > 0; --i) std::swap(order[static_cast<size_t>(i)], order[static_cast<size_t>(rng.below(i + 1))]);
  size_t next = 0;
  return detail::drawn(shape, dtype, [&] { return gap * (static_cast<double>(order[next++]) - static_cast<double>(n) / 2 + 0.25); });
}

/// i64 values in [low, high).
inline Tensor integers(const Shape& shape, uint64_t seed, int64_t low, int64_t high) {
  Rng rng = Rng(seed).stream("test integers");
  std::vector<int64_t> values(static_cast<size_t>(shape.numel()));
  for (auto& value : values) value = low + rng.below(high - low);
  return tensor(values, shape);
}

}  // namespace lamina::test
