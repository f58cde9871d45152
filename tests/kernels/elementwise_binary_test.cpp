#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>

#include "kernels/kernel_test.h"

using namespace lamina;
using namespace lamina::test;
using kernels::Binary;
using kernels::Broadcast;
using kernels::Compare;
using kernels::CpuBackend;
using kernels::Unary;

namespace {

struct Layout {
  const char* name;
  std::vector<int64_t> sizes, strides_a, strides_b;
};

const Layout kLayouts[] = {
    {"one element", {}, {}, {}},
    {"same shape", {1001}, {1}, {1}},
    {"scalar right", {515}, {1}, {0}},
    {"scalar left", {515}, {0}, {1}},
    {"row vector over rows", {13, 37}, {37, 1}, {0, 1}},
    {"column vector over rows", {13, 37}, {1, 0}, {37, 1}},
    {"outer sum", {13, 37}, {1, 0}, {0, 1}},
    {"transposed", {13, 37}, {1, 13}, {37, 1}},
    {"middle axis", {3, 5, 7}, {35, 7, 1}, {7, 0, 1}},
    {"six axes", {2, 3, 2, 3, 2, 5}, {180, 0, 30, 10, 5, 1}, {0, 30, 10, 0, 5, 1}},
    {"every second", {9, 11}, {44, 2}, {0, 3}},
    {"empty", {3, 0}, {0, 1}, {0, 1}},
};

Broadcast broadcast(const Layout& layout) {
  Broadcast space;
  space.rank = static_cast<int>(layout.sizes.size());
  for (size_t axis = 0; axis < layout.sizes.size(); ++axis) {
    space.sizes[axis] = layout.sizes[axis];
    space.strides[0][axis] = layout.strides_a[axis];
    space.strides[1][axis] = layout.strides_b[axis];
    space.strides[2][axis] = layout.strides_b[axis];
    space.numel *= layout.sizes[axis];
  }
  return space;
}

/// Offset of output `z` in an operand.
int64_t offset_of(const Broadcast& space, size_t operand, int64_t z) {
  int64_t offset = 0;
  for (int axis = space.rank - 1; axis >= 0; --axis) {
    const size_t a = static_cast<size_t>(axis);
    offset += z % space.sizes[a] * space.strides[operand][a];
    z /= space.sizes[a];
  }
  return offset;
}

template <class T>
std::vector<T> operand(uint64_t seed) {
  if constexpr (std::is_floating_point_v<T>) return random_values<T>(2000, seed, 0.5, 3);
  const auto values = random_values<double>(2000, seed, std::is_signed_v<T> ? -9 : 0, 9);
  return std::vector<T>(values.begin(), values.end());
}

}  // namespace

TEMPLATE_TEST_CASE("binary, compare and where: broadcasting", "[kernels]", float, double, int64_t, uint8_t) {
  using T = TestType;
  const auto& kernel = CpuBackend::elementwise<T>();
  const auto a = operand<T>(1), b = operand<T>(2);
  std::vector<uint8_t> mask(2000);
  for (size_t i = 0; i < mask.size(); ++i) mask[i] = static_cast<uint8_t>(i * 7 % 3 == 0);
  const auto value = [](Binary op, T x, T y) -> T {
    switch (op) {
      case Binary::add: return static_cast<T>(x + y);
      case Binary::sub: return static_cast<T>(x - y);
      case Binary::mul: return static_cast<T>(x * y);
      case Binary::div: return static_cast<T>(x / y);
      case Binary::max: return std::max(x, y);
      case Binary::min: return std::min(x, y);
      case Binary::pow: return static_cast<T>(std::pow(x, y));
    }
    return 0;
  };
  const auto holds = [](Compare op, T x, T y) { return std::array<bool, 6>{x == y, x != y, x<y, x <= y, x> y, x >= y}[static_cast<size_t>(op)]; };
  for (const Layout& layout : kLayouts) {
    CAPTURE(layout.name);
    const Broadcast space = broadcast(layout);
    const size_t n = static_cast<size_t>(space.numel);
    for (const Binary op : {Binary::add, Binary::sub, Binary::mul, Binary::max, Binary::min, Binary::div, Binary::pow}) {
      if (!std::is_floating_point_v<T> && (op == Binary::div || op == Binary::pow)) continue;
      std::vector<T> z(n, T(99)), expected(n);
      kernel.binary(op, space, a.data(), b.data(), z.data());
      for (size_t i = 0; i < n; ++i) {
        const int64_t at = static_cast<int64_t>(i);
        expected[i] = value(op, a[static_cast<size_t>(offset_of(space, 0, at))], b[static_cast<size_t>(offset_of(space, 1, at))]);
      }
      CHECK(z == expected);
    }
    for (int op = 0; op < 6; ++op) {
      std::vector<uint8_t> z(n, 99), expected(n);
      kernel.compare(static_cast<Compare>(op), space, a.data(), b.data(), z.data());
      for (size_t i = 0; i < n; ++i) {
        const int64_t at = static_cast<int64_t>(i);
        expected[i] =
            holds(static_cast<Compare>(op), a[static_cast<size_t>(offset_of(space, 0, at))], b[static_cast<size_t>(offset_of(space, 1, at))]);
      }
      CHECK(z == expected);
    }
    std::vector<T> z(n, T(99)), expected(n);
    kernel.where(space, mask.data(), a.data(), b.data(), z.data());
    for (size_t i = 0; i < n; ++i) {
      const int64_t at = static_cast<int64_t>(i);
      expected[i] = mask[static_cast<size_t>(offset_of(space, 0, at))] ? a[static_cast<size_t>(offset_of(space, 1, at))]
                                                                       : b[static_cast<size_t>(offset_of(space, 2, at))];
    }
    CHECK(z == expected);
  }
}

TEMPLATE_TEST_CASE("binary: NaN wins in max and min from either side, and ranges do not matter", "[kernels]", float, double) {
  using T = TestType;
  const auto& kernel = CpuBackend::elementwise<T>();
  const std::vector<T> a = {T(not_a_number), 1, 2, T(infinity)}, b = {1, T(not_a_number), 3, 1};
  for (const Binary op : {Binary::max, Binary::min}) {
    std::vector<T> z(4);
    kernel.binary(op, line(4), a.data(), b.data(), z.data());
    CHECK(std::isnan(z[0]));
    CHECK(std::isnan(z[1]));
    CHECK(z[2] == (op == Binary::max ? 3 : 2));
  }
  std::vector<uint8_t> flags(4);
  kernel.compare(Compare::ne, line(4), a.data(), a.data(), flags.data());
  CHECK(flags == std::vector<uint8_t>{1, 0, 0, 0});

  const int64_t rows = 401, columns = 303;
  const auto x = random_values<T>(rows * columns, 1), y = random_values<T>(columns, 2);
  Broadcast space = broadcast({"", {rows, columns}, {columns, 1}, {0, 1}});
  std::vector<T> expected;
  for (const int count : {1, 2, 3, 8}) {
    const Threads threads(count);
    std::vector<T> z(x.size());
    kernel.binary(Binary::mul, space, x.data(), y.data(), z.data());
    if (count == 1) expected = z;
    CHECK(same_bits(z, expected));
    CHECK(z[static_cast<size_t>(400 * columns + 302)] == x[static_cast<size_t>(400 * columns + 302)] * y[302]);
  }
}

TEMPLATE_TEST_CASE("elementwise on integers wraps and accumulates", "[kernels]", int64_t, uint8_t) {
  using T = TestType;
  const auto& kernel = CpuBackend::elementwise<T>();
  const T top = std::numeric_limits<T>::max(), bottom = std::numeric_limits<T>::min();
  std::vector<T> x = {1, 2, top, bottom}, y(4);
  kernel.unary(Unary::add_scalar, 4, x.data(), y.data(), 1);
  CHECK(y == std::vector<T>{2, 3, bottom, static_cast<T>(bottom + 1)});
  kernel.unary(Unary::mul_scalar, 4, x.data(), y.data(), 3);
  CHECK(y[1] == 6);
  kernel.unary(Unary::neg, 4, x.data(), y.data(), 0);
  CHECK(y[0] == static_cast<T>(-1));
  CHECK(y[3] == bottom);
  kernel.unary(Unary::abs, 4, y.data(), y.data(), 0);
  CHECK(y[0] == (std::is_signed_v<T> ? 1 : static_cast<T>(-1)));
  kernel.accumulate(4, x.data(), x.data());
  CHECK(x == std::vector<T>{2, 4, static_cast<T>(-2), 0});
}

TEMPLATE_TEST_CASE("accumulate adds", "[kernels]", float, double) {
  const auto x = random_values<TestType>(1003, 1);
  auto y = random_values<TestType>(1003, 2);
  auto expected = y;
  for (size_t i = 0; i < y.size(); ++i) expected[i] += x[i];
  CpuBackend::elementwise<TestType>().accumulate(1003, x.data(), y.data());
  CHECK(y == expected);
}

TEST_CASE("broadcast arithmetic is 64-bit (H01)", "[kernels]") {
  // Row 239674 of a matrix of width 8960 ends beyond 2^31. Of the allocation only the pages touched are ever real.
  constexpr int64_t width = 8960, start = 239674 * width;
  static_assert(start + width - 1 == 2147487999);
  const std::unique_ptr<uint8_t, decltype(&std::free)> matrix(static_cast<uint8_t*>(std::calloc(start + width, 1)), &std::free);
  REQUIRE(matrix);
  matrix.get()[0] = 5;
  matrix.get()[2147487999] = 7;
  Broadcast space = broadcast({"", {2, width}, {start, 1}, {0, 0}});
  const uint8_t one = 1;
  std::vector<uint8_t> z(2 * width);
  CpuBackend::elementwise<uint8_t>().binary(Binary::add, space, matrix.get(), &one, z.data());
  CHECK(z.front() == 6);
  CHECK(z.back() == 8);
}
