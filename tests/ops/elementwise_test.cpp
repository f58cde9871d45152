#include <lamina/autograd/graph.h>
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

Tensor gradient_of(Tensor (*fn)(const Tensor&), std::initializer_list<double> at) {
  Tensor x = leaf(at, {static_cast<int64_t>(at.size())});
  sum(fn(x)).backward();
  return x.grad();
}

}  // namespace

TEST_CASE("unary ops give the standard library's values", "[ops][elementwise]") {
  struct Case {
    Tensor (*op)(const Tensor&);
    double (*reference)(double);
    double low, high;
  };
  const Case cases[] = {
      {[](const Tensor& x) { return -x; }, [](double x) { return -x; }, -3, 3},
      {abs, [](double x) { return std::abs(x); }, -3, 3},
      {exp, [](double x) { return std::exp(x); }, -5, 5},
      {expm1, [](double x) { return std::expm1(x); }, -1e-3, 1e-3},
      {log, [](double x) { return std::log(x); }, 1e-3, 5},
      {log1p, [](double x) { return std::log1p(x); }, -1e-3, 1e-3},
      {sqrt, [](double x) { return std::sqrt(x); }, 0, 5},
      {square, [](double x) { return x * x; }, -3, 3},
      {reciprocal, [](double x) { return 1 / x; }, 0.2, 5},
      {sin, [](double x) { return std::sin(x); }, -7, 7},
      {cos, [](double x) { return std::cos(x); }, -7, 7},
      {erf, [](double x) { return std::erf(x); }, -3, 3},
      {sign, [](double x) { return x > 0   ? 1.0
                                   : x < 0 ? -1.0
                                           : 0.0; }, -1, 1},
      {floor, [](double x) { return std::floor(x); }, -3, 3},
      {relu, [](double x) { return x > 0 ? x : 0.0; }, -3, 3},
      {[](const Tensor& x) { return leaky_relu(x); }, [](double x) { return x > 0 ? x : 0.01 * x; }, -3, 3},
      {tanh, [](double x) { return std::tanh(x); }, -4, 4},
      {sigmoid, [](double x) { return 1 / (1 + std::exp(-x)); }, -8, 8},
      {[](const Tensor& x) { return gelu(x); }, [](double x) { return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0))); }, -4, 4},
      {[](const Tensor& x) { return gelu(x, Gelu::tanh); },
       [](double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x))); }, -4, 4},
      {silu, [](double x) { return x / (1 + std::exp(-x)); }, -6, 6},
      {softplus, [](double x) { return std::log1p(std::exp(x)); }, -6, 6},
      {[](const Tensor& x) { return clamp(x, -1, 2); }, [](double x) { return x < -1  ? -1.0
                                                                              : x > 2 ? 2.0
                                                                                      : x; }, -3, 3},
      {[](const Tensor& x) { return pow(x, 2.5); }, [](double x) { return std::pow(x, 2.5); }, 0.1, 3},
      {[](const Tensor& x) { return x / 3.0; }, [](double x) { return x / 3; }, -3, 3},
      {[](const Tensor& x) { return 2.0 - x; }, [](double x) { return 2 - x; }, -3, 3},
      {[](const Tensor& x) { return 2.0 / x; }, [](double x) { return 2 / x; }, 0.5, 3},
  };
  uint64_t seed = 1;
  for (const auto& c : cases) {
    CAPTURE(seed);
    const Tensor x = uniform({7, 53}, seed++, c.low, c.high, DType::f64);
    std::vector<double> expected;
    for (const double v : values(x)) expected.push_back(c.reference(v));
    const Tensor y = c.op(x);
    CHECK(y.shape() == x.shape());
    check_close(y, expected, f64_rounding);
    // f32 inputs are other numbers: compare with the reference at what was rounded.
    const Tensor x32 = x.cast(DType::f32);
    const std::vector<double> rounded = values(x32);
    for (size_t i = 0; i < expected.size(); ++i) expected[i] = c.reference(rounded[i]);
    check_close(c.op(x32), expected, f32_rounding);
  }
}

TEST_CASE("division is division, to the last bit", "[ops][elementwise]") {
  const Tensor x = normal({1000}, 1);
  const auto dividends = x.to_vector<float>();
  for (const double divisor : {3.0, 7.0, 10.0, 0.1, 4.0, -0.5, 1e30}) {
    const auto quotients = (x / divisor).to_vector<float>();
    for (size_t i = 0; i < quotients.size(); ++i)
      if (quotients[i] != dividends[i] / static_cast<float>(divisor)) FAIL("element " << i << " of x / " << divisor);
  }
  SUCCEED();
}

TEST_CASE("functions are stable at their ends", "[ops][elementwise]") {
  const Tensor x = tensor<float>({-1000, -100, 0, 100, 1000}, {5});
  check_close(sigmoid(x), {0, 0, 0.5, 1, 1}, f32_rounding);
  check_close(softplus(x), {0, 0, std::log(2.0), 100, 1000}, f32_rounding);
  check_close(tanh(x), {-1, -1, 0, 1, 1}, exact);
  check_close(silu(x), {0, 0, 0, 100, 1000}, f32_rounding);
  check_close(gelu(x), {0, 0, 0, 100, 1000}, f32_rounding);
  check_close(gelu(x, Gelu::tanh), {0, 0, 0, 100, 1000}, f32_rounding);
  using Op = Tensor (*)(const Tensor&);
  const Op ops[] = {sigmoid, softplus, tanh, silu, [](const Tensor& t) { return gelu(t); }, [](const Tensor& t) { return gelu(t, Gelu::tanh); }};
  for (const Op op : ops) CHECK(all_finite(gradient_of(op, {-1000, -100, 0, 100, 1000})));
  // NaN passes through what compares as well.
  const Tensor bad = tensor<double>({not_a_number}, {1});
  for (const Tensor& y : {relu(bad), clamp(bad, 0, 1), maximum(bad, ones({1}, DType::f64)), minimum(ones({1}, DType::f64), bad), leaky_relu(bad)})
    CHECK(std::isnan(y.item()));
}

TEST_CASE("gradients at kinks are the documented ones", "[ops][elementwise]") {
  check_close(gradient_of(relu, {-1, 0, 1}), {0, 0, 1}, exact);
  check_close(gradient_of(abs, {-2, 0, 2}), {-1, 0, 1}, exact);
  check_close(gradient_of([](const Tensor& x) { return clamp(x, -1, 1); }, {-2, -1, 0, 1, 2}), {0, 1, 1, 1, 0}, exact);
  check_close(gradient_of([](const Tensor& x) { return clamp(x, 1, 1); }, {0, 1, 2}), {0, 1, 0}, exact);
  check_close(gradient_of(sign, {-2, 0, 2}), {0, 0, 0}, exact);
  check_close(gradient_of(floor, {-2.5, 0, 2}), {0, 0, 0}, exact);
  check_close(gradient_of(sqrt, {0, 4}), {inf, 0.25}, exact);
  check_close(gradient_of([](const Tensor& x) { return pow(x, 0.0); }, {0, 3}), {0, 0}, exact);
  check_close(gradient_of([](const Tensor& x) { return pow(x, 1.0); }, {0, -3}), {1, 1}, exact);
  check_close(gradient_of([](const Tensor& x) { return pow(x, 2.0); }, {0, -3}), {0, -6}, exact);
  CHECK_THROWS_WITH(clamp(ones({1}), 2, 1), contains("[clamp] expected low <= high, got 2 and 1"));
  CHECK_THROWS_AS(clamp(ones({1}), not_a_number, 1), Error);
}

TEST_CASE("pow and ties of maximum give gradients on both sides", "[ops][elementwise]") {
  Tensor a = leaf({0, 0, 2}, {3}), b = leaf({0, 3, 0}, {3});
  const Tensor y = pow(a, b);
  check_close(y, {1, 0, 1}, exact);
  sum(y).backward();
  check_close(a.grad(), {0, 0, 0}, exact);
  check_close(b.grad(), {0, 0, std::log(2.0)}, f64_rounding);
  check_close(pow(zeros({1}), full({1}, -1)), {inf}, exact);

  Tensor c = leaf({1, 2, 3}, {3}), d = leaf({1, 3, 2}, {3});
  maximum(c, d).backward(tensor<double>({10, 20, 30}, {3}));
  check_close(c.grad(), {5, 0, 30}, exact);
  check_close(d.grad(), {5, 20, 0}, exact);
  c.zero_grad(), d.zero_grad();
  minimum(c, d).backward(tensor<double>({10, 20, 30}, {3}));
  check_close(c.grad(), {5, 20, 0}, exact);
  check_close(d.grad(), {5, 0, 30}, exact);
}

TEST_CASE("gradients of broadcast operands are summed back to their shape (E08)", "[ops][elementwise]") {
  const auto unit = [](const Shape& shape) { return ones(shape, DType::f64).set_requires_grad(); };
  SECTION("(3, 4) + (1, 4)") {
    Tensor a = unit({3, 4}), b = unit({1, 4});
    sum(a + b).backward();
    CHECK(b.grad().shape() == Shape{1, 4});
    check_close(b.grad(), {3, 3, 3, 3}, exact);
    check_close(a.grad(), std::vector<double>(12, 1.0), exact);
  }
  SECTION("(3, 1) x (1, 2)") {
    Tensor a = leaf({1, 2, 3}, {3, 1}), b = leaf({1, 10}, {1, 2});
    const Tensor y = a * b;
    check_close(y, {1, 10, 2, 20, 3, 30}, exact);
    sum(y).backward();
    check_close(a.grad(), {11, 11, 11}, exact);
    check_close(b.grad(), {6, 6}, exact);
  }
  SECTION("(3, 1, 4) + (2, 1, 5, 1)") {
    Tensor a = unit({3, 1, 4}), b = unit({2, 1, 5, 1});
    const Tensor y = a + b;
    CHECK(y.shape() == Shape{2, 3, 5, 4});
    sum(y).backward();
    CHECK(a.grad().shape() == a.shape());
    CHECK(b.grad().shape() == b.shape());
    check_close(a.grad(), std::vector<double>(12, 10.0), exact);
    check_close(b.grad(), std::vector<double>(10, 12.0), exact);
  }
  SECTION("scalar + (3, 4)") {
    Tensor a = unit({}), b = unit({3, 4});
    sum(a + b).backward();
    CHECK(a.grad().rank() == 0);
    check_close(a.grad(), {12}, exact);
  }
  SECTION("an empty batch gives zeros") {
    Tensor a = unit({0, 3}), b = unit({3});
    const Tensor y = a * b;
    CHECK(y.shape() == Shape{0, 3});
    sum(y).backward();
    check_close(b.grad(), {0, 0, 0}, exact);
    CHECK(a.grad().shape() == Shape{0, 3});
  }
}

TEST_CASE("broadcasting equals the loop it stands for", "[ops][elementwise]") {
  const Tensor a = normal({3, 1, 5, 1}, 1), b = normal({2, 1, 4}, 2);
  const Tensor y = a - b;
  REQUIRE(y.shape() == Shape{3, 2, 5, 4});
  const auto minuend = a.to_vector<float>(), subtrahend = b.to_vector<float>();
  std::vector<double> expected;
  for (size_t i = 0; i < 3; ++i)
    for (size_t j = 0; j < 2; ++j)
      for (size_t k = 0; k < 5; ++k)
        for (size_t l = 0; l < 4; ++l) expected.push_back(static_cast<double>(minuend[i * 5 + k] - subtrahend[j * 4 + l]));
  check_close(y, expected, exact);
}

TEST_CASE("there is no implicit promotion", "[ops][elementwise]") {
  const Tensor f = ones({2}), d = ones({2}, DType::f64), i = ones({2}, DType::i64);
  CHECK_THROWS_WITH(f + d, contains("[add] expected operands of one dtype, got f32 [2] and f64 [2]; cast() one of them"));
  CHECK_THROWS_WITH(f * i, contains("[mul]") && contains("f32") && contains("i64") && contains("cast()"));
  CHECK_THROWS_WITH(lt(f, i), contains("[lt] expected operands of one dtype"));
  CHECK_THROWS_WITH(where(ones({2}, DType::u8), f, d), contains("[where] expected operands of one dtype"));
  CHECK_THROWS_WITH(where(f, f, f), contains("[where] mask: expected u8, got f32 [2]"));
  CHECK_THROWS_WITH(f + ones({3}), contains("[add] shapes [2] and [3] do not broadcast"));
  CHECK_THROWS_WITH(exp(i), contains("[exp] expected a tensor of f32 or f64, got i64"));
  CHECK_THROWS_WITH(i / i, contains("[div] expected a tensor of f32 or f64, got i64"));
  CHECK_THROWS_WITH(i / 2.0, contains("[div]"));
  CHECK_THROWS_WITH(i + 0.5, contains("[add] 0.5 is not a value of i64; cast() the tensor first"));
  CHECK_THROWS_WITH(lt(i, 0.5), contains("[lt] 0.5 is not a value of i64"));
  CHECK_THROWS_WITH(ones({2}, DType::u8) + 300.0, contains("300 is not a value of u8"));
  CHECK((tensor(std::vector<uint8_t>{7, 5, 9}, {3}) - 5.0).to_vector<uint8_t>() == std::vector<uint8_t>{2, 0, 4});
  CHECK_THROWS_WITH(ones({2}, DType::u8) - -1.0, contains("-1 is not a value of u8"));
  CHECK_THROWS_AS(f + Tensor(), Error);
}

TEST_CASE("integers add, multiply and compare", "[ops][elementwise]") {
  const Tensor a = tensor<int64_t>({1, -2, 3}, {3}), b = tensor<int64_t>({5, 6, -7}, {3});
  check_close(a + b, {6, 4, -4}, exact);
  check_close(a - b, {-4, -8, 10}, exact);
  check_close(a * b, {5, -12, -21}, exact);
  check_close(maximum(a, b), {5, 6, 3}, exact);
  check_close(minimum(a, b), {1, -2, -7}, exact);
  check_close(a + 1.0, {2, -1, 4}, exact);
  check_close(a * 3.0, {3, -6, 9}, exact);
  check_close(-a, {-1, 2, -3}, exact);
  check_close(abs(a), {1, 2, 3}, exact);
  const int64_t large = (int64_t{1} << 53) + 1;
  CHECK((tensor<int64_t>({large}, {1}) + tensor<int64_t>({2}, {1})).to_vector<int64_t>()[0] == large + 2);
  const Tensor bytes = tensor<uint8_t>({1, 2, 3}, {3});
  check_close(bytes + bytes, {2, 4, 6}, exact);
  check_close(eq(bytes, 2.0), {0, 1, 0}, exact);
}

TEST_CASE("comparisons give u8 and treat NaN as IEEE does", "[ops][elementwise]") {
  const Tensor a = tensor<double>({1, 2, 3, not_a_number, not_a_number}, {5}), b = tensor<double>({2, 2, 2, 2, not_a_number}, {5});
  CHECK(eq(a, b).dtype() == DType::u8);
  check_close(eq(a, b), {0, 1, 0, 0, 0}, exact);
  check_close(ne(a, b), {1, 0, 1, 1, 1}, exact);
  check_close(lt(a, b), {1, 0, 0, 0, 0}, exact);
  check_close(le(a, b), {1, 1, 0, 0, 0}, exact);
  check_close(gt(a, b), {0, 0, 1, 0, 0}, exact);
  check_close(ge(a, b), {0, 1, 1, 0, 0}, exact);
  check_close(gt(a, 1.5), {0, 1, 1, 0, 0}, exact);
  check_close(eq(tensor<int64_t>({1, 2}, {2, 1}), tensor<int64_t>({1, 2}, {2})), {1, 0, 0, 1}, exact);
}

TEST_CASE("where keeps what is not finite on the side not taken out of the gradient (E10)", "[ops][elementwise]") {
  SECTION("the side not taken is NaN, inf or huge") {
    Tensor a = leaf({1, not_a_number, inf}, {3}), b = leaf({not_a_number, 2, 3}, {3});
    const Tensor mask = tensor<uint8_t>({1, 0, 0}, {3});
    const Tensor y = where(mask, a, b);
    check_close(y, {1, 2, 3}, exact);
    // Chosen, not multiplied: an infinite gradient of the side taken must not become 0 * inf on the other.
    y.backward(tensor<double>({inf, 20, not_a_number}, {3}));
    check_close(a.grad(), {inf, 0, 0}, exact);
    check_close(b.grad(), {0, 20, not_a_number}, exact);
  }
  SECTION("where(x > 0, sqrt(x), x) has its gradient everywhere, where PyTorch gives NaN") {
    Tensor x = leaf({-1, -4, 4}, {3});
    const Tensor y = where(gt(x, 0.0), sqrt(x), x);
    check_close(y, {-1, -4, 2}, exact);
    sum(y).backward();
    check_close(x.grad(), {1, 1, 0.25}, exact);
  }
  SECTION("the composed norm is NaN at 0, the norm is not; x log x at 0 is NaN forward") {
    Tensor x = leaf({0, 0}, {2});
    sqrt(sum(square(x))).backward();
    check_close(x.grad(), {not_a_number, not_a_number}, exact);
    x.zero_grad();
    norm(x).backward();
    check_close(x.grad(), {0, 0}, exact);
    const Tensor zero = zeros({}, DType::f64);
    CHECK(std::isnan((zero * log(zero)).item()));
  }
}

TEST_CASE("elementwise ops save only what their backward reads", "[ops][elementwise]") {
  const int64_t bytes = autograd::saved_bytes();
  Tensor x = normal({100}, 1, DType::f64).set_requires_grad();
  const Tensor c = normal({100}, 2, DType::f64);
  const auto saved = [&](const Tensor& y) { return y.defined() ? autograd::saved_bytes() - bytes : -1; };
  CHECK(saved(x + c) == 0);
  CHECK(saved(-x) == 0);
  CHECK(saved(x * 3.0) == 0);
  CHECK(saved(x * c) == 800);
  CHECK(saved(x * x) == 1600);
  CHECK(saved(x / c) == 800);
  CHECK(saved(tanh(x)) == 800);
  CHECK(saved(where(gt(c, 0.0), x, c)) == 100);
  CHECK(saved(sum(x)) == 0);
  CHECK(saved(x.detach() * c) == 0);
}

TEST_CASE("elementwise ops accept empty tensors and scalars", "[ops][elementwise]") {
  const Tensor none = zeros({2, 0, 3});
  CHECK(exp(none).shape() == Shape{2, 0, 3});
  CHECK((none + none).shape() == Shape{2, 0, 3});
  CHECK((none * ones({2, 1, 1})).shape() == Shape{2, 0, 3});
  CHECK(eq(none, none).shape() == Shape{2, 0, 3});
  CHECK(where(eq(none, none), none, scalar(1)).shape() == Shape{2, 0, 3});
  Tensor x = zeros({0}).set_requires_grad();
  tanh(x).backward(zeros({0}));
  CHECK(x.grad().shape() == Shape{0});
  CHECK(exp(scalar(0)).item() == 1);
}
