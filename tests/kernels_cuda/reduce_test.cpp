// Reductions on CUDA against the CPU's: extremes and places exactly, sums to rounding.

#include <array>
#include <limits>

#include "kernels/cuda/backend.h"
#include "kernels/vectors.h"
#include "kernels_cuda/device_array.h"

using namespace lamina;
using namespace lamina::test;
using namespace lamina::kernels;

namespace {

// Both sides round the sum of up to some ten thousand values of order 1 once or twice; the CPU adds some thousand of them in T.
template <class T>
constexpr double tolerance = sizeof(T) == 4 ? 1e-4 : 1e-12;

using Extents = std::array<int64_t, 3>;  // outer, axis, inner

// Short and long rows, narrow and wide columns, one launch and two.
std::vector<Extents> shapes() {
  return {{1, 1, 1},    {5, 1, 1},    {3, 2, 1},    {1, 3, 1},     {100, 4, 1},    {77, 5, 1},     {9, 33, 1},    {600, 64, 1},
          {3, 1000, 1}, {4, 1024, 1}, {3, 1025, 1}, {1, 9001, 1},  {1, 40'000, 1}, {2, 30'001, 1}, {1, 1, 7},     {4, 1, 300},
          {7, 3, 2},    {50, 5, 4},   {3, 31, 70},  {2, 40, 65},   {1, 3000, 1},   {1, 3001, 3},   {1, 5000, 64}, {2, 700, 5},
          {3, 130, 33}, {1, 40, 130}, {1, 9, 1000}, {300, 20, 20}, {1, 1200, 100}};
}

template <class T>
std::vector<T> values_of(const Extents& s, uint64_t seed) {
  return normal_vector<T>(s[0] * s[1] * s[2], seed, 0.1);
}

template <class T>
std::vector<T> reduced(const ReduceKernels<T>& kernels, Reduction op, const Extents& s, const std::vector<T>& x, bool device, size_t shift = 0) {
  const auto n = static_cast<size_t>(s[0] * s[2]);
  if (!device) {
    std::vector<T> y(n);
    kernels.reduce(op, s[0], s[1], s[2], x.data(), y.data());
    return y;
  }
  const DeviceArray<T> from(x, shift), y(n);
  kernels.reduce(op, s[0], s[1], s[2], from.data(), y.data());
  return y.host();
}
template <class T>
std::vector<T> on_cpu(Reduction op, const Extents& s, const std::vector<T>& x) {
  return reduced(CpuBackend::reduce<T>(), op, s, x, false);
}
template <class T>
std::vector<T> on_device(Reduction op, const Extents& s, const std::vector<T>& x, size_t shift = 0) {
  return reduced(CudaBackend::reduce<T>(), op, s, x, true, shift);
}

template <class T>
std::vector<int64_t> places(bool largest, const Extents& s, const std::vector<T>& x, bool device) {
  const auto n = static_cast<size_t>(s[0] * s[2]);
  if (!device) {
    std::vector<int64_t> y(n);
    CpuBackend::reduce<T>().arg_reduce(largest, s[0], s[1], s[2], x.data(), y.data());
    return y;
  }
  const DeviceArray<T> from(x);
  const DeviceArray<int64_t> y(n);
  CudaBackend::reduce<T>().arg_reduce(largest, s[0], s[1], s[2], from.data(), y.data());
  return y.host();
}

template <class T>
void check_shape(const Extents& s, size_t shift) {
  INFO("[" << s[0] << ", " << s[1] << ", " << s[2] << "], shift " << shift);
  auto x = values_of<T>(s, 11);
  REQUIRE(first_difference(on_device(Reduction::sum, s, x, shift), on_cpu(Reduction::sum, s, x), tolerance<T>) == "");
  for (size_t i = 0; i < x.size(); i += 3) x[i] = std::round(x[i]);  // with equal values
  REQUIRE(on_device(Reduction::max, s, x, shift) == on_cpu(Reduction::max, s, x));
  REQUIRE(on_device(Reduction::min, s, x, shift) == on_cpu(Reduction::min, s, x));
  REQUIRE(places(true, s, x, true) == places(true, s, x, false));
  REQUIRE(places(false, s, x, true) == places(false, s, x, false));
}

template <class T>
double sum_of_squares(const std::vector<T>& x, double start, size_t shift = 0) {
  const DeviceArray<T> from(x, shift);
  const DeviceArray<double> sum(std::vector<double>{start});
  CudaBackend::reduce<T>().sum_of_squares(static_cast<int64_t>(x.size()), from.data(), sum.data());
  return sum.host()[0];
}

template <class T>
uint8_t all_finite(const std::vector<T>& x, uint8_t before, size_t shift = 0) {
  const DeviceArray<T> from(x, shift);
  const DeviceArray<uint8_t> finite(std::vector<uint8_t>{before});
  CudaBackend::reduce<T>().all_finite(static_cast<int64_t>(x.size()), from.data(), finite.data());
  return finite.host()[0];
}

}  // namespace

TEST_CASE("cuda reduce: sums, extremes and places over every kind of axis") {
  for (const Extents& s : shapes()) {
    check_shape<float>(s, 0);
    check_shape<double>(s, 0);
  }
}

TEST_CASE("cuda reduce: rows that are not aligned to 16 bytes") {
  for (const Extents& s : {Extents{5, 64, 1}, {2, 4096, 1}, {1, 20'000, 1}, {1, 300, 8}}) {
    check_shape<float>(s, 1);
    check_shape<double>(s, 1);
  }
}

TEST_CASE("cuda reduce: more results than 65,535 (H02)") {
  check_shape<float>({70'000, 2, 1}, 0);
  check_shape<float>({35'000, 2, 2}, 0);
}

TEST_CASE("cuda reduce: a NaN wins, and the first of equal values") {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  for (const Extents& s : {Extents{3, 700, 1}, {2, 20'000, 1}, {2, 300, 3}, {1, 9, 40}}) {
    INFO("[" << s[0] << ", " << s[1] << ", " << s[2] << "]");
    auto x = values_of<float>(s, 5);
    const auto at = [&](int64_t j) -> float& { return x[static_cast<size_t>(j * s[2])]; };  // of the first column
    at(s[1] / 2) = at(s[1] - 1) = nan;
    at(1) = inf;
    at(2) = -inf;
    for (const Reduction op : {Reduction::max, Reduction::min, Reduction::sum}) {
      const auto y = on_device(op, s, x);
      CHECK(std::isnan(y[0]));
      for (size_t i = 1; i < y.size(); ++i) REQUIRE(!std::isnan(y[i]));
    }
    CHECK(places(true, s, x, true)[0] == s[1] / 2);
    CHECK(places(false, s, x, true)[0] == s[1] / 2);
    std::fill(x.begin(), x.end(), -inf);
    CHECK(places(true, s, x, true) == std::vector<int64_t>(static_cast<size_t>(s[0] * s[2]), 0));
    CHECK(on_device(Reduction::max, s, x) == std::vector<float>(static_cast<size_t>(s[0] * s[2]), -inf));
  }
}

TEST_CASE("cuda reduce: sums are exact where a f32 accumulator would stop (A23)") {
  // After 2^24 a f32 sum does not notice a one: here the first of a thread's values is that large.
  for (const Extents& s : {Extents{1, 3000, 1}, {1, 500, 3}, {1, 900, 1}, {1, 20'000, 1}}) {
    std::vector<float> x(static_cast<size_t>(s[1] * s[2]), 1.0F);
    std::fill(x.begin(), x.begin() + s[2], 16777216.0F);
    CHECK(on_device(Reduction::sum, s, x) ==
          std::vector<float>(static_cast<size_t>(s[2]), static_cast<float>(16777216.0 + static_cast<double>(s[1] - 1))));
  }
  CHECK(on_device(Reduction::sum, {1, 300'000, 1}, std::vector<float>(300'000, 0.1F))[0] == 30000.0F);
}

TEST_CASE("cuda reduce: empty axes and empty results") {
  CHECK(on_device<float>(Reduction::sum, {4, 0, 1}, {}) == std::vector<float>(4, 0));
  CHECK(on_device<float>(Reduction::sum, {2, 0, 3}, {}) == std::vector<float>(6, 0));
  CHECK(on_device<double>(Reduction::sum, {0, 5, 3}, {}).empty());
  CHECK(on_device<double>(Reduction::sum, {3, 5, 0}, {}).empty());
  CHECK(places<float>(true, {0, 5, 1}, {}, true).empty());
}

TEST_CASE("cuda reduce: sum of squares adds to what is there") {
  for (const int64_t n : {1, 3, 1000, 1025, 50'001}) {
    INFO("n " << n);
    const auto x = normal_vector<float>(n, 3);
    double expected = 0.25;
    for (const float v : x) expected += static_cast<double>(v) * static_cast<double>(v);
    constexpr double double_sums = 1e-13;  // another order of additions in double
    for (const size_t shift : {0, 1}) {
      CHECK(std::abs(sum_of_squares(x, 0.25, shift) - expected) <= double_sums * expected);
      CHECK(std::abs(sum_of_squares(as_double(x), 0.25, shift) - expected) <= double_sums * expected);
    }
  }
  CHECK(sum_of_squares(std::vector<float>{3e30F, 4e30F}, 0) == Approx(25e60));  // beyond f32
  CHECK(sum_of_squares(std::vector<float>{}, 2.5) == 2.5);
}

TEST_CASE("cuda reduce: all finite") {
  for (const size_t n : {1, 5, 1025, 30'000}) {
    INFO("n " << n);
    auto x = normal_vector<float>(static_cast<int64_t>(n), 7);
    CHECK(all_finite(x, 1) == 1);
    CHECK(all_finite(x, 0) == 0);  // it stays as it is
    for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
      for (const size_t at : {size_t{0}, n / 2, n - 1}) {
        const float before = std::exchange(x[at], bad);
        CHECK(all_finite(x, 1) == 0);
        CHECK(all_finite(as_double(x), 1, 1) == 0);
        x[at] = before;
      }
    x[0] = std::numeric_limits<float>::max();
    CHECK(all_finite(x, 1) == 1);
  }
  CHECK(all_finite(std::vector<double>{}, 1) == 1);
}

TEST_CASE("cuda reduce: two runs have the same bits (H08)") {
  for (const Extents& s : {Extents{1, 40'000, 1}, {2, 3000, 3}, {30, 257, 1}}) {
    const auto x = values_of<float>(s, 9);
    const auto one = on_device(Reduction::sum, s, x);
    CHECK(one == on_device(Reduction::sum, s, x));
    CHECK(largest_magnitude(one) > 0);
  }
}
