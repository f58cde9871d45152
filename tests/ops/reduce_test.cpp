#include <lamina/core/parallel.h>
#include <lamina/ops/elementwise.h>
#include <lamina/ops/reduce.h>
#include <lamina/ops/shape_ops.h>

#include <cmath>
#include <limits>

#include "support/allclose.h"
#include "support/random.h"

using namespace lamina;
using namespace lamina::test;

namespace {

constexpr double inf = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

Tensor leaf(std::initializer_list<double> values, const Shape& shape) { return tensor<double>(values, shape).set_requires_grad(); }

}  // namespace

TEST_CASE("reductions of a worked example", "[ops][reduce]") {
  const Tensor x = tensor<double>({1, 2, 3, 4, 5, 9}, {2, 3});
  check_close(sum(x), {24}, exact);
  check_close(sum(x, {0}), {5, 7, 12}, exact);
  check_close(sum(x, {1}), {6, 18}, exact);
  CHECK(sum(x, {-1}, true).shape() == Shape{2, 1});
  CHECK(sum(x, {0, 1}).shape() == Shape{});
  CHECK(sum(x, {}, true).shape() == Shape{1, 1});
  check_close(mean(x), {4}, exact);
  check_close(mean(x, {1}), {2, 6}, exact);
  check_close(var(x, {1}), {1, 7}, exact);
  check_close(var(x, {1}, 0), {2.0 / 3, 14.0 / 3}, f64_rounding);
  check_close(max(x, {0}), {4, 5, 9}, exact);
  check_close(min(x, {1}), {1, 4}, exact);
  check_close(max(x), {9}, exact);
  check_close(norm(tensor<double>({3, 4, 5, 12}, {2, 2}), {1}), {5, 13}, exact);
  CHECK(argmax(x, 1).to_vector<int64_t>() == std::vector<int64_t>{2, 2});
  CHECK(argmin(x, 0).to_vector<int64_t>() == std::vector<int64_t>{0, 0, 0});
  CHECK(argmax(x, 1, true).shape() == Shape{2, 1});
  CHECK(argmax(x).dtype() == DType::i64);
}

TEST_CASE("reductions over any axes equal the loop they stand for", "[ops][reduce]") {
  const Shape shape{3, 4, 1, 5, 2};
  const Tensor x = normal(shape, 1, DType::f64);
  const auto all = values(x);
  for (int bits = 1; bits < 32; ++bits) {
    Axes axes;
    for (int axis = 0; axis < 5; ++axis)
      if (bits >> axis & 1) axes.push_back(axis % 2 ? axis : axis - 5);
    Shape kept = shape;
    for (const int axis : axes) kept = kept.with(axis, 1);
    std::vector<double> sums(static_cast<size_t>(kept.numel())), highest(sums.size(), -inf);
    for (int64_t i = 0; i < x.numel(); ++i) {
      int64_t rest = i, target = 0, stride = 1;
      for (int axis = 4; axis >= 0; --axis) {
        const int64_t position = rest % shape[axis];
        rest /= shape[axis];
        if (kept[axis] != 1) target += position * stride;
        stride *= kept[axis];
      }
      sums[static_cast<size_t>(target)] += all[static_cast<size_t>(i)];
      highest[static_cast<size_t>(target)] = std::max(highest[static_cast<size_t>(target)], all[static_cast<size_t>(i)]);
    }
    CAPTURE(bits);
    CHECK(sum(x, axes, true).shape() == kept);
    CHECK(sum(x, axes).rank() == 5 - static_cast<int>(axes.size()));
    check_close(sum(x, axes), sums, f64_rounding);
    check_close(max(x, axes), highest, exact);
    check_close(sum_to(x, kept), sums, f64_rounding);
  }
}

TEST_CASE("sums of very many terms lose nothing (A23)", "[ops][reduce][large]") {
  for (const int64_t n : {int64_t{20000000}, (int64_t{1} << 24) + 2}) CHECK(mean(ones({n})).item() == 1.0);
  // Along the other axis too, where a plain loop would keep one running sum per column.
  CHECK(max_difference(mean(ones({(int64_t{1} << 24) + 2, 2}), {0}), ones({2})) == 0);
}

TEST_CASE("sums of equal terms are the nearest f32, where rounding one after the other errs in one direction", "[ops][reduce]") {
  for (const int64_t n : {7, 64, 1000, 4096, 100003}) {
    CAPTURE(n);
    const double term = static_cast<double>(0.1f);
    const auto nearest = [&](int64_t count) { return static_cast<double>(static_cast<float>(term * static_cast<double>(count))); };
    CHECK(sum(full({n}, term)).item() == nearest(n));
    CHECK(difference(mean(full({n}, term)).item(), term) < f32_rounding);
    // Along the other axis: of few columns, and of several blocks of them.
    for (const int64_t columns : {3, 300})
      check_close(sum(full({std::min<int64_t>(n, 1000), columns}, term), {0}),
                  std::vector<double>(static_cast<size_t>(columns), nearest(std::min<int64_t>(n, 1000))), exact);
  }
}

// [cpu]: a GPU has no thread count.
TEST_CASE("the gradient of a stencil is exact for every thread count (I07)", "[ops][reduce][cpu]") {
  const int threads = num_threads();
  for (const int count : {1, 2, 3, 8}) {
    set_num_threads(count);
    for (int repeat = 0; repeat < 20; ++repeat) {
      Tensor x = (arange(64, DType::f32) * 0.5).detach().set_requires_grad();
      const Tensor f = sum(slice(x, 0, 1) * slice(x, 0, 0, -1));
      REQUIRE(f.item() == 20832);
      f.backward();
      std::vector<double> expected(64);
      for (size_t i = 0; i < 64; ++i) expected[i] = static_cast<double>(i);
      expected[0] = 0.5;
      expected[63] = 31;
      check_close(x.grad(), expected, exact);
      REQUIRE(sum(x.grad()).item() == 1984.5);
    }
  }
  // Sums of a million rounded terms: the same bits for every thread count.
  const Tensor large = normal({1000, 1000}, 1);
  set_num_threads(1);
  const Tensor all = sum(large), rows = sum(large, {1}), columns = sum(large, {0}), variance = var(large, {0});
  for (const int count : {2, 3, 8}) {
    set_num_threads(count);
    CHECK(same_bits(sum(large), all));
    CHECK(same_bits(sum(large, {1}), rows));
    CHECK(same_bits(sum(large, {0}), columns));
    CHECK(same_bits(var(large, {0}), variance));
  }
  set_num_threads(threads);
}

TEST_CASE("var is two-pass", "[ops][reduce]") {
  // E[x^2] - E[x]^2 in f32 gives -128 for the first row.
  const Tensor x = tensor<float>({40000, 40001, 40002, 40003, 4096, 4096.25f, 4096.5f, 4096.75f}, {2, 4});
  check_close(var(x, {1}, 0), {1.25, 0.078125}, f32_rounding);
  check_close(var(x, {1}), {1.25 * 4 / 3, 0.078125 * 4 / 3}, f32_rounding);
  const Tensor shifted = normal({100000}, 1, DType::f32, 1e4, 0.1);
  const auto v = values(shifted);
  double mean_of = 0, squares = 0;
  for (const double e : v) mean_of += e / 100000;
  for (const double e : v) squares += (e - mean_of) * (e - mean_of) / 99999;
  CHECK(std::abs(var(shifted).item() / squares - 1) < f32_sum);  // though the mean itself is rounded to 1e-3, whose square is 1e-4 of the variance
  CHECK(std::isnan(var(ones({3}), {}, 3).item()));
  CHECK(std::isnan(var(ones({1})).item()));
  CHECK(var(ones({1}), {}, 0).item() == 0);
}

TEST_CASE("var keeps its digits, and its gradient's, at a large offset", "[ops][reduce]") {
  Tensor x = normal({4001}, 5) + 3e6;
  x = x.detach().set_requires_grad();
  const auto v = values(x);
  double mean = 0, squares = 0;
  for (const double value : v) mean += value / 4001;
  for (const double value : v) squares += (value - mean) * (value - mean);
  const Tensor y = var(x);
  CHECK(difference(y.item(), squares / 4000) < f32_rounding);
  y.backward(scalar(2000));
  std::vector<double> expected;
  for (const double value : v) expected.push_back(value - mean);
  check_close(x.grad(), expected, f32_rounding);
  CHECK(var(full({1000}, 3e6 + 0.25)).item() == 0);
}

TEST_CASE("max and min share the gradient among ties, NaN wins", "[ops][reduce]") {
  Tensor x = leaf({1, 3, 3, 2, 2, 2}, {2, 3});
  max(x, {1}).backward(tensor<double>({10, 30}, {2}));
  check_close(x.grad(), {0, 5, 5, 10, 10, 10}, exact);
  x.zero_grad();
  min(x).backward();
  check_close(x.grad(), {1, 0, 0, 0, 0, 0}, exact);
  const Tensor bad = tensor<double>({1, not_a_number, 2, inf, -inf, 0}, {2, 3});
  check_close(max(bad, {1}), {not_a_number, inf}, exact);
  check_close(min(bad, {1}), {not_a_number, -inf}, exact);
  Tensor y = leaf({1, not_a_number, not_a_number, 2, 7, 7}, {2, 3});
  max(y, {1}).backward(tensor<double>({10, 30}, {2}));
  check_close(y.grad(), {0, 5, 5, 0, 15, 15}, exact);
  CHECK(argmax(bad, 1).to_vector<int64_t>() == std::vector<int64_t>{1, 0});
  CHECK(argmin(bad, 1).to_vector<int64_t>() == std::vector<int64_t>{1, 1});
  CHECK(argmax(tensor<float>({2, 7, 7, 1}, {4})).item() == 1);
  CHECK(argmin(tensor<float>({2, 1, 7, 1}, {4})).item() == 1);
}

TEST_CASE("norm has sub-gradient 0 at 0 and does not overflow (E10)", "[ops][reduce]") {
  Tensor x = leaf({0, 0, 3, 4}, {2, 2});
  norm(x, {1}).backward(tensor<double>({7, 10}, {2}));
  check_close(x.grad(), {0, 0, 6, 8}, f64_rounding);
  CHECK(std::abs(norm(tensor<float>({3e30f, 4e30f}, {2})).item() / 5e30 - 1) < f32_rounding);
  CHECK(std::abs(norm(tensor<float>({3e-30f, 4e-30f}, {2})).item() / 5e-30 - 1) < f32_rounding);
  CHECK(norm(zeros({0})).item() == 0);
}

TEST_CASE("reductions over nothing", "[ops][reduce]") {
  const Tensor none = zeros({0, 3}), wide = zeros({2, 0});
  check_close(sum(none), {0}, exact);
  check_close(sum(none, {0}), {0, 0, 0}, exact);
  CHECK(sum(none, {1}).shape() == Shape{0});
  CHECK(sum(none, {1}, true).shape() == Shape{0, 1});
  check_close(sum(wide, {1}), {0, 0}, exact);
  CHECK(std::isnan(mean(none).item()));
  check_close(mean(none, {0}), {not_a_number, not_a_number, not_a_number}, exact);
  CHECK(std::isnan(var(none).item()));
  check_close(norm(none, {0}), {0, 0, 0}, exact);
  CHECK_THROWS_WITH(max(none), contains("[max] nothing to choose from: [0, 3]"));
  CHECK_THROWS_WITH(min(none, {0}), contains("[min] nothing to choose from"));
  CHECK_THROWS_WITH(argmax(none, 0), contains("[argmax] nothing to choose from: [0, 3] has no elements along axis 0"));
  CHECK(max(none, {1}).shape() == Shape{0});
  CHECK(argmax(none, 1).shape() == Shape{0});
  Tensor x = zeros({0, 3}).set_requires_grad();
  sum(x).backward();
  CHECK(x.grad().shape() == Shape{0, 3});
  max(x, {1}).backward(zeros({0}));
  CHECK(sum(scalar(3)).item() == 3);
  CHECK(max(scalar(3)).item() == 3);
}

TEST_CASE("reductions refuse wrong axes and dtypes", "[ops][reduce]") {
  const Tensor x = ones({2, 3});
  CHECK_THROWS_WITH(sum(x, {2}), contains("[sum] axis 2 is out of range for [2, 3]"));
  CHECK_THROWS_WITH(mean(x, {0, -2}), contains("[mean] axis -2 is named twice"));
  CHECK_THROWS_WITH(sum(ones({2}, DType::i64)), contains("[sum] expected a tensor of f32 or f64, got i64"));
  CHECK_THROWS_WITH(argmax(x, 5), contains("[argmax] axis 5 is out of range"));
  CHECK_THROWS_WITH(argmax(scalar(1)), contains("[argmax] axis -1 is out of range"));
  CHECK_THROWS_WITH(sum_to(x, {2}), contains("[sum_to] [2] does not broadcast to [2, 3]"));
  CHECK_THROWS_WITH(sum_to(x, {1, 2, 3}), contains("[sum_to]"));
  CHECK_THROWS_AS(max(Tensor()), Error);
}

TEST_CASE("a reduction is a tensor of its own", "[ops][reduce]") {
  const Tensor x = tensor<float>({1, 2}, {2, 1});
  for (Tensor y : {sum(x, {1}), mean(x, {1}), max(x, {1})}) {
    y.fill_(9);
    check_close(x, {1, 2}, exact);
  }
  CHECK(sum_to(x, {2, 1}).is_same(x));
}

TEST_CASE("all_finite finds one bad element wherever it stands", "[ops][reduce]") {
  for (const double bad : {inf, -inf, not_a_number}) {
    for (const int64_t position : {0, 17, 4099, 99999}) {
      Tensor x = normal({100000}, 1);
      CHECK(all_finite(x));
      set_element(x, position, bad);
      CHECK_FALSE(all_finite(x));
    }
  }
  CHECK(all_finite(zeros({0})));
  CHECK(all_finite(full({3}, 3e38)));
}
