#include <algorithm>

#include "kernels/kernel_test.h"

using namespace lamina;
using namespace lamina::test;
using kernels::CpuBackend;

TEMPLATE_TEST_CASE("scatter_add_rows: repeated indices add up (E07)", "[kernels]", float, double) {
  using T = TestType;
  const auto& kernel = CpuBackend::index<T>();
  const std::vector<int64_t> ids = {1, 1, 2};
  const std::vector<T> dy = {1, 2, 10, 20, 5, 6};
  std::vector<T> table(6, 99);
  kernel.scatter_add_rows(3, 2, dy.data(), ids.data(), 3, table.data());
  CHECK(table == std::vector<T>{0, 0, 11, 22, 5, 6});
  kernel.scatter_add_rows(0, 2, nullptr, nullptr, 3, table.data());
  CHECK(table == std::vector<T>(6, 0));
  kernel.scatter_add_rows(3, 0, nullptr, ids.data(), 3, nullptr);
  kernel.scatter_add_rows(0, 2, nullptr, nullptr, 0, nullptr);
}

TEST_CASE("scatter_add_rows: one id 10000 times, the same bits for every thread count (H08)", "[kernels]") {
  const auto& kernel = CpuBackend::index<float>();
  const std::vector<int64_t> same(10000, 1);
  std::vector<float> ones(30000, 1), table(6, 9);
  kernel.scatter_add_rows(10000, 3, ones.data(), same.data(), 2, table.data());
  CHECK(table == std::vector<float>{0, 0, 0, 10000, 10000, 10000});

  std::vector<int64_t> index(50000);
  for (size_t i = 0; i < index.size(); ++i) index[i] = static_cast<int64_t>(i * 7919 % 97);
  const auto dy = random_values<float>(50000 * 8, 1);
  std::vector<float> expected(97 * 8), by_hand(97 * 8);
  for (size_t i = 0; i < index.size(); ++i) {
    for (size_t j = 0; j < 8; ++j) by_hand[static_cast<size_t>(index[i]) * 8 + j] += dy[i * 8 + j];
  }
  for (const int count : {1, 2, 3, 8}) {
    const Threads threads(count);
    kernel.scatter_add_rows(50000, 8, dy.data(), index.data(), 97, expected.data());
    CHECK(same_bits(expected, by_hand));
  }
}

TEMPLATE_TEST_CASE("gather along the middle axis", "[kernels]", float, double, int64_t, uint8_t) {
  using T = TestType;
  const int64_t outer = 3, axis = 5, count = 4, inner = 7;
  std::vector<T> x(static_cast<size_t>(outer * axis * inner)), y(static_cast<size_t>(outer * count * inner)), expected(y.size());
  std::vector<int64_t> index(y.size());
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<T>(i);
  for (size_t i = 0; i < index.size(); ++i) index[i] = static_cast<int64_t>(i * 13 % 5);
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t j = 0; j < count; ++j) {
      for (int64_t i = 0; i < inner; ++i) {
        const size_t at = static_cast<size_t>((o * count + j) * inner + i);
        expected[at] = x[static_cast<size_t>((o * axis + index[at]) * inner + i)];
      }
    }
  }
  CpuBackend::index<T>().gather(outer, axis, count, inner, x.data(), index.data(), y.data());
  CHECK(y == expected);
  CpuBackend::index<T>().gather(0, axis, count, inner, nullptr, nullptr, nullptr);
}

TEMPLATE_TEST_CASE("scatter_add is gather's adjoint", "[kernels]", float, double) {
  using T = TestType;
  const auto& kernel = CpuBackend::index<T>();
  const std::vector<int64_t> twice = {0, 0};
  const std::vector<T> dy = {T(0.25), T(0.5)};
  std::vector<T> dx = {9};
  kernel.scatter_add(1, 1, 2, 1, dy.data(), twice.data(), dx.data());  // E07
  CHECK(dx == std::vector<T>{T(0.75)});

  const int64_t outer = 4, axis = 50, count = 400, inner = 90;
  std::vector<int64_t> index(static_cast<size_t>(outer * count * inner));
  for (size_t i = 0; i < index.size(); ++i) index[i] = static_cast<int64_t>(i * i % 50);
  const auto gradient = random_values<T>(outer * count * inner, 1);
  std::vector<T> expected(static_cast<size_t>(outer * axis * inner)), result(expected.size());
  for (int64_t at = 0; at < outer * count * inner; ++at) {
    const int64_t o = at / (count * inner), i = at % inner, j = index[static_cast<size_t>(at)];
    expected[static_cast<size_t>((o * axis + j) * inner + i)] += gradient[static_cast<size_t>(at)];
  }
  for (const int threads : {1, 2, 3, 8}) {
    const Threads scope(threads);
    std::fill(result.begin(), result.end(), T(9));
    kernel.scatter_add(outer, axis, count, inner, gradient.data(), index.data(), result.data());
    CHECK(same_bits(result, expected));
  }
}

TEST_CASE("first_out_of_range finds the first", "[kernels]") {
  std::vector<int64_t> index(500000, 3);
  CHECK(kernels::first_out_of_range(500000, index.data(), 4) == 500000);
  CHECK(kernels::first_out_of_range(500000, index.data(), 3) == 0);
  index[499999] = -1;
  CHECK(kernels::first_out_of_range(500000, index.data(), 4) == 499999);
  index[250001] = 4;
  index[250007] = std::numeric_limits<int64_t>::min();
  for (const int count : {1, 2, 8}) {
    const Threads threads(count);
    CHECK(kernels::first_out_of_range(500000, index.data(), 4) == 250001);
  }
  CHECK(kernels::first_out_of_range(0, nullptr, 4) == 0);
  CHECK(kernels::first_out_of_range(1, index.data(), 0) == 0);
}
