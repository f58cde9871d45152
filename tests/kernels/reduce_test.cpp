#include <algorithm>
#include <string>

#include "kernels/kernel_test.h"

using namespace lamina;
using namespace lamina::test;
using kernels::CpuBackend;
using kernels::Reduction;

namespace {

template <class T>
double sum_of_squares(int64_t n, const T* x) {
  double sum = 0;
  CpuBackend::reduce<T>().sum_of_squares(n, x, &sum);
  return sum;
}

template <class T>
bool is_finite(int64_t n, const T* x) {
  uint8_t finite = 1;
  CpuBackend::reduce<T>().all_finite(n, x, &finite);
  return finite == 1;
}

struct Size {
  int64_t outer, axis, inner;
};
const Size kSizes[] = {{1, 1, 1},     {1, 100003, 1}, {3, 9000, 1}, {70, 5000, 1}, {1000, 10, 1}, {5, 33, 1}, {1, 128, 1000},
                       {1, 5000, 10}, {1, 777, 17},   {4, 3, 5},    {7, 129, 2},   {2, 300, 300}, {1, 1, 9},  {3, 0, 4},
                       {5, 0, 1},     {0, 3, 4},      {2, 3, 0},    {1, 40000, 3}, {1, 257, 257}};

template <class T>
std::vector<T> run(Reduction op, const Size& size, const std::vector<T>& x) {
  std::vector<T> y(static_cast<size_t>(size.outer * size.inner), T(-3));
  CpuBackend::reduce<T>().reduce(op, size.outer, size.axis, size.inner, x.data(), y.data());
  return y;
}

/// Calls f(i, j, x index) for output i and position j along the axis.
template <class F>
void for_each(const Size& s, F&& f) {
  for (int64_t i = 0; i < s.outer * s.inner; ++i) {
    for (int64_t j = 0; j < s.axis; ++j) f(static_cast<size_t>(i), j, static_cast<size_t>((i / s.inner * s.axis + j) * s.inner + i % s.inner));
  }
}

}  // namespace

TEMPLATE_TEST_CASE("reduce: sums, maxima and minima over any axis", "[kernels]", float, double) {
  using T = TestType;
  for (const Size& size : kSizes) {
    CAPTURE(size.outer, size.axis, size.inner);
    const auto x = random_values<T>(size.outer * size.axis * size.inner, 1);
    const size_t n = static_cast<size_t>(size.outer * size.inner);
    std::vector<long double> sum(n), magnitude(n);
    std::vector<T> largest(n, static_cast<T>(-infinity)), smallest(n, static_cast<T>(infinity));
    for_each(size, [&](size_t i, int64_t, size_t at) {
      sum[i] += x[at];
      magnitude[i] += std::abs(x[at]);
      largest[i] = std::max(largest[i], x[at]);
      smallest[i] = std::min(smallest[i], x[at]);
    });
    const auto y = run(Reduction::sum, size, x);
    double worst = 0;  // against the sum of magnitudes
    for (size_t i = 0; i < n; ++i) worst = std::max(worst, static_cast<double>(std::abs(sum[i] - y[i]) / std::max(1.0L, magnitude[i])));
    CHECK(worst < 2 * std::numeric_limits<T>::epsilon());
    if (size.axis > 0) {
      CHECK(run(Reduction::max, size, x) == largest);
      CHECK(run(Reduction::min, size, x) == smallest);
    } else {
      CHECK(y == std::vector<T>(n, 0));
    }
  }
}

TEMPLATE_TEST_CASE("reduce: the same bits for every thread count", "[kernels]", float, double) {
  for (const Size& size : {Size{1, 1000003, 1}, Size{3, 200001, 1}, Size{1000, 301, 1}, Size{1, 3001, 129}, Size{1, 100001, 3}, Size{9, 50, 1000}}) {
    const auto x = random_values<TestType>(size.outer * size.axis * size.inner, 1);
    std::vector<TestType> expected;
    double squares = 0;
    for (const int count : {1, 2, 3, 8}) {
      const Threads threads(count);
      const auto y = run(Reduction::sum, size, x);
      const double total = sum_of_squares<TestType>(static_cast<int64_t>(x.size()), x.data());
      if (count == 1) expected = y, squares = total;
      CHECK(same_bits(y, expected));
      CHECK(total == squares);
    }
  }
}

TEST_CASE("reduce: the mean of 20,000,000 ones is 1 (A23)", "[kernels]") {
  for (const int64_t n : {int64_t{20000000}, int64_t{16777218}}) {
    const std::vector<float> ones(static_cast<size_t>(n), 1);
    for (const Size& size : {Size{1, n, 1}, Size{1, n / 2, 2}, Size{2, n / 2, 1}}) {
      for (const float y : run(Reduction::sum, size, ones)) CHECK(y / static_cast<float>(size.axis) == 1);
    }
    CHECK(sum_of_squares<float>(n, ones.data()) == static_cast<double>(n));
  }
}

TEMPLATE_TEST_CASE("reduce: NaN and infinities reach the result from every position", "[kernels]", float, double) {
  using T = TestType;
  bool right = true;
  for (int64_t inner : {1, 3}) {
    for (int64_t axis : {1, 5, 16, 37, 300}) {
      for (int64_t at = 0; at < axis; at += 1 + axis / 40) {
        std::vector<T> x = random_values<T>(axis * inner, 1);
        x[static_cast<size_t>(at * inner)] = static_cast<T>(not_a_number);
        for (const Reduction op : {Reduction::sum, Reduction::max, Reduction::min}) {
          const auto y = run(op, {1, axis, inner}, x);
          right = right && std::isnan(y[0]) && (inner == 1 || !std::isnan(y[1]));
        }
        int64_t best[3] = {-1, -1, -1};
        CpuBackend::reduce<T>().arg_reduce(true, 1, axis, inner, x.data(), best);
        right = right && best[0] == at;
        const int64_t n = axis * inner;
        right = right && !is_finite<T>(n, x.data());
        x[static_cast<size_t>(at * inner)] = static_cast<T>(-infinity);
        right = right && !is_finite<T>(n, x.data());
        x[static_cast<size_t>(at * inner)] = std::numeric_limits<T>::max();
        right = right && is_finite<T>(n, x.data());
      }
    }
  }
  CHECK(right);
  CHECK(run(Reduction::max, {1, 3, 1}, std::vector<T>(3, static_cast<T>(-infinity)))[0] == static_cast<T>(-infinity));
}

TEMPLATE_TEST_CASE("arg_reduce: the first of equal ones", "[kernels]", float, double) {
  using T = TestType;
  for (const Size& size : kSizes) {
    if (size.axis == 0) continue;
    auto x = random_values<T>(size.outer * size.axis * size.inner, 1, -9, 9);
    for (T& v : x) v = std::round(v);  // many ties
    for (const bool largest : {true, false}) {
      const size_t n = static_cast<size_t>(size.outer * size.inner);
      std::vector<int64_t> y(n, -1), expected(n, 0);
      std::vector<T> best(n);
      CpuBackend::reduce<T>().arg_reduce(largest, size.outer, size.axis, size.inner, x.data(), y.data());
      for_each(size, [&](size_t i, int64_t j, size_t at) {
        if (j == 0 || (largest ? x[at] > best[i] : x[at] < best[i])) best[i] = x[at], expected[i] = j;
      });
      CHECK(y == expected);
    }
  }
}

TEST_CASE("sum_of_squares accumulates in double", "[kernels]") {
  const auto x = random_values<float>(100001, 1, -3, 3);
  long double expected = 0;
  for (const float v : x) expected += static_cast<long double>(v) * v;
  CHECK(std::abs(sum_of_squares<float>(100001, x.data()) / static_cast<double>(expected) - 1) < 1e-14);
  const std::vector<float> large(5, 1e30f);  // squares beyond float
  CHECK(sum_of_squares<float>(5, large.data()) == 5 * static_cast<double>(1e30f) * 1e30f);
  CHECK(sum_of_squares<double>(0, nullptr) == 0);
  CHECK(is_finite<double>(0, nullptr));
}

TEST_CASE("a loop whose neighbours overlap is summed without a race (I07)", "[kernels]") {
  // f = sum of x_i x_{i-1} with x_i = i / 2: its value, the sum of the gradient, both exact in f32 in any order.
  std::vector<float> x(64), product(63), gradient(64);
  for (size_t i = 0; i < 64; ++i) x[i] = static_cast<float>(i) / 2;
  const auto& elementwise = CpuBackend::elementwise<float>();
  for (int threads = 1; threads <= 16; ++threads) {
    const Threads scope(threads);
    bool right = true;
    for (int repeat = 0; repeat < 20; ++repeat) {
      elementwise.binary(kernels::Binary::mul, line(63), x.data(), x.data() + 1, product.data());
      std::fill(gradient.begin(), gradient.end(), 0.0f);
      elementwise.accumulate(63, x.data() + 1, gradient.data());
      elementwise.accumulate(63, x.data(), gradient.data() + 1);
      right = right && run(Reduction::sum, {1, 63, 1}, product)[0] == 20832 && run(Reduction::sum, {1, 64, 1}, gradient)[0] == 1984.5f;
      right = right && gradient[0] == 0.5f && gradient[63] == 31;
      for (size_t i = 1; i < 63; ++i) right = right && gradient[i] == static_cast<float>(i);
    }
    CHECK(right);
  }
}
