#include <algorithm>
#include <cstdlib>
#include <memory>
#include <numeric>

#include "kernels/kernel_test.h"

using namespace lamina;
using namespace lamina::test;
using kernels::Broadcast;

namespace {

const kernels::MoveKernels& kernel() { return kernels::CpuBackend::move(); }

template <class From, class To>
std::vector<To> cast(const std::vector<From>& x) {
  std::vector<To> y(x.size(), To(77));
  kernel().cast(dtype_of<From>(), dtype_of<To>(), static_cast<int64_t>(x.size()), x.data(), y.data());
  return y;
}

Broadcast source_space(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides) {
  Broadcast space;
  space.rank = static_cast<int>(sizes.size());
  for (size_t a = 0; a < sizes.size(); ++a) {
    space.sizes[a] = sizes[a];
    space.strides[0][a] = strides[a];
    space.numel *= sizes[a];
  }
  return space;
}

}  // namespace

TEST_CASE("cast: all pairs, truncating, saturating, NaN to 0", "[kernels]") {
  const std::vector<double> wide = {1.9, -1.9, 255.5, 256, -0.5, 1e30, -1e30, infinity, -infinity, not_a_number, 9223372036854775807.0};
  const int64_t top = std::numeric_limits<int64_t>::max(), bottom = std::numeric_limits<int64_t>::min();
  CHECK(cast<double, int64_t>(wide) == std::vector<int64_t>{1, -1, 255, 256, 0, top, bottom, top, bottom, 0, top});
  CHECK(cast<double, uint8_t>(wide) == std::vector<uint8_t>{1, 0, 255, 255, 0, 255, 0, 255, 0, 0, 255});
  const std::vector<float> narrow(wide.begin(), wide.end());
  CHECK(cast<float, int64_t>(narrow) == std::vector<int64_t>{1, -1, 255, 256, 0, top, bottom, top, bottom, 0, top});
  CHECK(cast<float, uint8_t>(narrow) == std::vector<uint8_t>{1, 0, 255, 255, 0, 255, 0, 255, 0, 0, 255});
  CHECK(cast<int64_t, uint8_t>({-1, 0, 200, 255, 256, top}) == std::vector<uint8_t>{0, 0, 200, 255, 255, 255});
  CHECK(cast<uint8_t, float>({0, 1, 255}) == std::vector<float>{0, 1, 255});
  CHECK(cast<uint8_t, double>({0, 1, 255}) == std::vector<double>{0, 1, 255});
  CHECK(cast<uint8_t, int64_t>({0, 1, 255}) == std::vector<int64_t>{0, 1, 255});
  CHECK(cast<int64_t, double>({-3, 1LL << 53}) == std::vector<double>{-3, 9007199254740992.0});
  CHECK(cast<int64_t, float>({-3, 16777217}) == std::vector<float>{-3, 16777216});
  CHECK(cast<double, float>({0.1, 1e300})[0] == 0.1f);
  CHECK(std::isinf(cast<double, float>({0.1, 1e300})[1]));
  CHECK(cast<float, double>({0.5f}) == std::vector<double>{0.5});
  CHECK(cast<int64_t, int64_t>({top, bottom}) == std::vector<int64_t>{top, bottom});
  const auto x = random_values<double>(200001, 1, -300, 300);
  const auto y = cast<double, int64_t>(x);
  bool right = true;
  for (size_t i = 0; i < x.size(); ++i) right = right && y[i] == static_cast<int64_t>(x[i]);
  CHECK(right);
}

TEST_CASE("copy, fill and iota", "[kernels]") {
  std::vector<uint8_t> bytes(3000001);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 31);
  std::vector<uint8_t> copied(bytes.size());
  kernel().copy(static_cast<int64_t>(bytes.size()), bytes.data(), copied.data());
  CHECK(copied == bytes);
  kernel().copy(0, nullptr, nullptr);

  std::vector<float> f(100001);
  kernel().fill(DType::f32, 100001, 0.1, f.data());
  CHECK(f == std::vector<float>(100001, 0.1f));
  std::vector<int64_t> l(5);
  kernel().fill(DType::i64, 5, -2.9, l.data());
  CHECK(l == std::vector<int64_t>(5, -2));
  std::vector<uint8_t> u(5);
  kernel().fill(DType::u8, 5, 300, u.data());
  CHECK(u == std::vector<uint8_t>(5, 255));

  kernel().iota(DType::i64, 5, 10, -3, l.data());
  CHECK(l == std::vector<int64_t>{10, 7, 4, 1, -2});
  std::vector<double> d(3);
  kernel().iota(DType::f64, 3, 0.5, 0.25, d.data());
  CHECK(d == std::vector<double>{0.5, 0.75, 1});
  kernel().iota(DType::f32, 100001, 0, 1, f.data());  // exact: not a running sum
  CHECK(f[100000] == 100000);
  kernel().iota(DType::u8, 0, 0, 1, nullptr);
}

TEMPLATE_TEST_CASE("strided_copy: permutations and expansions", "[kernels]", uint8_t, float, int64_t) {
  struct Case {
    std::vector<int64_t> sizes, strides;
  };
  const Case cases[] = {
      {{}, {}},  // one element
      {{1001}, {1}},
      {{7}, {0}},
      {{33, 65}, {1, 33}},  // transposes, with ragged tiles
      {{300, 200}, {1, 300}},
      {{5, 1}, {1, 5}},
      {{3, 40, 50}, {2000, 1, 40}},
      {{2, 3, 17, 19}, {969, 323, 1, 17}},
      {{6, 5, 7}, {7, 42, 1}},  // a swap of outer axes
      {{4, 5, 6}, {1, 24, 4}},
      {{5, 30}, {0, 1}},  // expansions
      {{30, 5}, {1, 0}},
      {{10, 10}, {200, 2}},
      {{2, 3, 2, 3, 2, 5}, {1, 2, 6, 12, 36, 72}},
      {{3, 0, 4}, {4, 4, 1}},
  };
  std::vector<TestType> source(60000);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<TestType>(i * 7 % 251);
  for (const Case& c : cases) {
    const Broadcast space = source_space(c.sizes, c.strides);
    std::vector<TestType> target(static_cast<size_t>(space.numel), TestType(255)), expected(target);
    for (int64_t z = 0; z < space.numel; ++z) {
      int64_t rest = z, offset = 0;
      for (size_t a = c.sizes.size(); a-- > 0; rest /= c.sizes[a]) offset += rest % c.sizes[a] * c.strides[a];
      expected[static_cast<size_t>(z)] = source[static_cast<size_t>(offset)];
    }
    for (const int count : {1, 3}) {
      const Threads threads(count);
      std::fill(target.begin(), target.end(), TestType(255));
      kernel().strided_copy(sizeof(TestType), space, source.data(), target.data());
      CHECK(target == expected);
    }
  }
}

TEST_CASE("copy_2d and gather_rows", "[kernels]") {
  std::vector<int64_t> source(12);
  std::iota(source.begin(), source.end(), 0);
  std::vector<int64_t> target(10, -1);
  kernel().copy_2d(3, 16, source.data() + 1, 32, target.data(), 24);  // columns 1, 2 of [3,4] into columns 0, 1 of a width of 3
  CHECK(target == std::vector<int64_t>{1, 2, -1, 5, 6, -1, 9, 10, -1, -1});
  kernel().copy_2d(0, 16, nullptr, 32, nullptr, 24);
  kernel().copy_2d(3, 0, nullptr, 0, nullptr, 0);

  const std::vector<int64_t> index = {2, 0, 2, 1};
  std::vector<int64_t> rows(16);
  kernel().gather_rows(4, 3, 32, source.data(), index.data(), rows.data());
  CHECK(rows == std::vector<int64_t>{8, 9, 10, 11, 0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7});
  kernel().gather_rows(0, 3, 32, nullptr, nullptr, nullptr);
}

TEST_CASE("movers address rows beyond 2^31 bytes (H01)", "[kernels]") {
  constexpr int64_t width = 8960, row = 239674;
  const std::unique_ptr<uint8_t, decltype(&std::free)> matrix(static_cast<uint8_t*>(std::calloc((row + 1) * width, 1)), &std::free);
  REQUIRE(matrix);
  matrix.get()[2147487999] = 9;
  std::vector<uint8_t> target(width);
  kernel().gather_rows(1, row + 1, width, matrix.get(), &row, target.data());
  CHECK(target[8959] == 9);
  target.assign(width, 0);
  kernel().copy_2d(2, width / 2, matrix.get() + width / 2, row * width, target.data(), width / 2);
  CHECK(target[8959] == 9);
  target.assign(width, 0);
  kernel().strided_copy(1, source_space({2, width / 2}, {row * width, 2}), matrix.get() + 1, target.data());
  CHECK(target[8959] == 9);
}
