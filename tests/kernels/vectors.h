#pragma once
// Plain vectors for tests of kernels: inputs, comparison, and the same run under several thread counts.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <string>
#include <vector>

#include <lamina/core/parallel.h>
#include <lamina/core/random.h>

#include "support/catch.h"

namespace lamina::test {

template <class T>
std::vector<T> normal_vector(int64_t n, uint64_t seed, double mean = 0, double sd = 1) {
  Rng rng = Rng(seed).stream("kernel test");
  std::vector<T> v(static_cast<size_t>(n));
  for (T& value : v) {
    const double u = 1 - rng.uniform(), w = rng.uniform();
    value = static_cast<T>(mean + sd * std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * w));
  }
  return v;
}

template <class T>
std::vector<double> as_double(const std::vector<T>& v) {
  return {v.begin(), v.end()};
}

/// The first element with |actual - expected| > tolerance * max(1, |expected|), in words; "" if there is none. NaN equals NaN only.
template <class A, class B>
std::string first_difference(const std::vector<A>& actual, const std::vector<B>& expected, double tolerance) {
  if (actual.size() != expected.size()) return "sizes differ";
  for (size_t i = 0; i < actual.size(); ++i) {
    const double a = static_cast<double>(actual[i]), b = static_cast<double>(expected[i]);
    if (a == b || (std::isnan(a) && std::isnan(b))) continue;
    if (!(std::abs(a - b) <= tolerance * std::max(1.0, std::abs(b))))
      return "element " + std::to_string(i) + " of " + std::to_string(actual.size()) + ": expected " + Catch::Detail::stringify(b) + ", got " +
             Catch::Detail::stringify(a);
  }
  return "";
}

template <class T>
double largest_magnitude(const std::vector<T>& v) {
  double largest = 0;
  for (T value : v) largest = std::max(largest, std::abs(static_cast<double>(value)));
  return largest;
}

/// d loss / d x by central differences; loss() reads x.
template <class F>
std::vector<double> central_differences(std::vector<double>& x, double step, F&& loss) {
  std::vector<double> gradient(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double middle = x[i];
    x[i] = middle + step;
    const double above = loss();
    x[i] = middle - step;
    const double below = loss();
    x[i] = middle;
    gradient[i] = (above - below) / (2 * step);
  }
  return gradient;
}

/// Whether run(), which returns one vector, gives the same bits with 1, 2, 3 and 8 threads.
template <class F>
bool same_bits_for_all_thread_counts(F&& run) {
  const int before = num_threads();
  set_num_threads(1);
  const auto first = run();
  bool same = true;
  for (int threads : {2, 3, 8}) {
    set_num_threads(threads);
    const auto other = run();
    same = same && other.size() == first.size() && std::memcmp(other.data(), first.data(), first.size() * sizeof(first[0])) == 0;
  }
  set_num_threads(before);
  return same;
}

template <class T>
void append(std::vector<T>& all, const std::vector<T>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

}  // namespace lamina::test
