#include <algorithm>
#include <array>
#include <numbers>

#include <Random123/philox.h>

#include "kernels/kernel_test.h"

using namespace lamina;
using namespace lamina::test;
using kernels::CpuBackend;

namespace {

constexpr uint64_t kKey = 0x0123456789abcdefULL, kCounter = 0xfffffff0ULL;  // the counter's low word overflows within the tests

std::array<uint32_t, 4> block(uint64_t counter) {
  const auto numbers =
      r123::Philox4x32()({{static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0}}, {{0x89abcdefu, 0x01234567u}});
  return {numbers[0], numbers[1], numbers[2], numbers[3]};
}
uint32_t number(int64_t i) { return block(kCounter + static_cast<uint64_t>(i) / 4)[static_cast<size_t>(i % 4)]; }
double pair(uint64_t counter, size_t which) {
  const auto numbers = block(counter);
  return static_cast<double>((static_cast<uint64_t>(numbers[2 * which + 1]) << 32 | numbers[2 * which]) >> 11) * 0x1p-53;
}

}  // namespace

TEST_CASE("philox: the published answers", "[kernels]") {
  // Known-answer vectors of Salmon et al. 2011 for philox4x32-10, counters and keys all 0 and all ones.
  std::vector<double> u(2);
  CpuBackend::random<double>().uniform(0, 0, 2, 0, 1, u.data());
  CHECK(u[0] == static_cast<double>(0xe169c58d6627e8d5ULL >> 11) * 0x1p-53);
  CHECK(u[1] == static_cast<double>(0x9b00dbd8bc57ac4cULL >> 11) * 0x1p-53);
}

TEST_CASE("uniform, normal and bernoulli follow the documented streams", "[kernels]") {
  const int64_t n = 203;
  std::vector<float> f(n);
  std::vector<double> d(n), g(n);
  std::vector<uint8_t> bits(n);
  std::vector<float> bits_f32(n);
  CpuBackend::random<float>().uniform(kKey, kCounter, n, 0, 1, f.data());
  CpuBackend::random<double>().uniform(kKey, kCounter, n, -2, 3, d.data());
  CpuBackend::random<double>().normal(kKey, kCounter, n, 1, 2, g.data());
  CpuBackend::random<uint8_t>().bernoulli(kKey, kCounter, n, 1ULL << 30, bits.data());
  CpuBackend::random<float>().bernoulli(kKey, kCounter, n, 1ULL << 30, bits_f32.data());
  bool right = true;
  for (int64_t i = 0; i < n; ++i) {
    const size_t at = static_cast<size_t>(i);
    const uint64_t counter = kCounter + static_cast<uint64_t>(i);
    right = right && f[at] == static_cast<float>(number(i) >> 8) * 0x1p-24f;
    right = right && d[at] == -2 + 5 * pair(kCounter + static_cast<uint64_t>(i) / 2, at % 2);
    const double z = std::sqrt(-2 * std::log(1 - pair(counter, 0))) * std::cos(2 * std::numbers::pi * pair(counter, 1));
    right = right && g[at] == 1 + 2 * z;
    right = right && bits[at] == (number(i) < 1u << 30) && bits_f32[at] == bits[at];
  }
  CHECK(right);
}

TEMPLATE_TEST_CASE("random: moments, limits and ranges", "[kernels]", float, double) {
  using T = TestType;
  const auto& kernel = CpuBackend::random<T>();
  const int64_t n = 200000;
  const double root = std::sqrt(static_cast<double>(n));
  std::vector<T> x(static_cast<size_t>(n));
  const auto moments = [&] {
    double mean = 0, square = 0;
    for (const T v : x) mean += static_cast<double>(v), square += static_cast<double>(v) * v;
    return std::array<double, 2>{mean / static_cast<double>(n), square / static_cast<double>(n)};
  };
  kernel.uniform(1, 0, n, 0, 1, x.data());
  CHECK(std::abs(moments()[0] - 0.5) < 5 * 0.29 / root);
  CHECK(std::abs(moments()[1] - 1.0 / 3) < 5 * 0.3 / root);
  CHECK(*std::min_element(x.begin(), x.end()) >= 0);
  CHECK(*std::max_element(x.begin(), x.end()) < 1);
  kernel.normal(2, 0, n, 0, 1, x.data());
  CHECK(std::abs(moments()[0]) < 5 / root);
  CHECK(std::abs(moments()[1] - 1) < 5 * 1.5 / root);
  kernel.bernoulli(3, 0, n, 1288490189, x.data());  // 0.3
  CHECK(std::abs(moments()[0] - 0.3) < 5 * 0.46 / root);
  kernel.bernoulli(3, 0, n, 1ULL << 32, x.data());
  CHECK(moments()[0] == 1);
  kernel.bernoulli(3, 0, n, 0, x.data());
  CHECK(moments()[0] == 0);

  // Where rounding would reach the upper end, it is excluded all the same.
  const double low = 1, high = 1 + 4 * static_cast<double>(std::numeric_limits<T>::epsilon());
  kernel.uniform(4, 0, n, low, high, x.data());
  CHECK(*std::min_element(x.begin(), x.end()) == 1);
  CHECK(*std::max_element(x.begin(), x.end()) < static_cast<T>(high));
  kernel.uniform(4, 0, 3, 2, 2, x.data());
  CHECK(x[2] == 2);
}

TEMPLATE_TEST_CASE("dropout has bernoulli's bits, and threads change nothing", "[kernels]", float, double) {
  using T = TestType;
  const auto& kernel = CpuBackend::random<T>();
  const int64_t n = 100003;
  const auto x = random_values<T>(n, 1);
  std::vector<T> bits(x.size()), expected(x.size()), normal;
  kernel.bernoulli(kKey, kCounter, n, 3000000000, bits.data());
  for (size_t i = 0; i < x.size(); ++i) expected[i] = bits[i] != 0 ? x[i] * T(1.25) : T(0);
  for (const int count : {1, 2, 3, 8}) {
    const Threads threads(count);
    auto y = x;
    kernel.dropout(kKey, kCounter, n, 3000000000, 1.25, y.data(), y.data());  // in place
    CHECK(same_bits(y, expected));
    kernel.normal(kKey, kCounter, n, 0, 1, y.data());
    if (count == 1) normal = y;
    CHECK(same_bits(y, normal));
  }
}
