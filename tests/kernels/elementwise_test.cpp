#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>

#include "kernels/kernel_test.h"

using namespace lamina;
using namespace lamina::test;
using kernels::CpuBackend;
using kernels::SavedBy;
using kernels::Unary;

namespace {

using Reference = std::function<long double(long double x, long double p)>;

struct UnaryCase {
  const char* name;
  Unary op;
  Reference value;
  double low, high;         // where values and gradients are compared
  double ulp_f32, ulp_f64;  // the bound on errors of the value
  double p = 0;
  double kink = infinity;  // gradients are not compared near it
};

long double normal_cdf(long double x) { return 0.5L * std::erfc(-x * std::sqrt(0.5L)); }
long double logistic(long double x) { return 1 / (1 + std::exp(-x)); }

// One rounding gives 0.5; Highway states 1 to 4 for its functions; silu, gelu and pow multiply two rounded factors. gelu_tanh's exponent is as large
// as 2 * 0.8 (6 + 9.7) = 25 at the ends, so that its rounding alone costs 25 eps.
const UnaryCase kUnary[] = {
    {"neg", Unary::neg, [](auto x, auto) { return -x; }, -5, 5, 0, 0},
    {"abs", Unary::abs, [](auto x, auto) { return std::abs(x); }, -5, 5, 0, 0, 0, 0},
    {"exp", Unary::exp, [](auto x, auto) { return std::exp(x); }, -80, 88, 1.5, 1.5},
    {"log", Unary::log, [](auto x, auto) { return std::log(x); }, 1e-3, 50, 4, 4},
    {"sqrt", Unary::sqrt, [](auto x, auto) { return std::sqrt(x); }, 1e-3, 50, 0.5, 0.5},
    {"square", Unary::square, [](auto x, auto) { return x * x; }, -5, 5, 0.5, 0.5},
    {"reciprocal", Unary::reciprocal, [](auto x, auto) { return 1 / x; }, 0.01, 5, 0.5, 0.5},
    {"relu", Unary::relu, [](auto x, auto) { return std::max(x, 0.0L); }, -5, 5, 0, 0, 0, 0},
    {"leaky_relu", Unary::leaky_relu, [](auto x, auto p) { return x > 0 ? x : p * x; }, -5, 5, 0.5, 0.5, 0.25, 0},
    {"tanh", Unary::tanh, [](auto x, auto) { return std::tanh(x); }, -10, 10, 4, 4},
    {"sigmoid", Unary::sigmoid, [](auto x, auto) { return logistic(x); }, -80, 80, 3, 3},
    {"gelu", Unary::gelu, [](auto x, auto) { return x * normal_cdf(x); }, -12, 12, 6, 6},
    {"gelu_tanh", Unary::gelu_tanh,
     [](auto x, auto) { return x * logistic(2 * std::sqrt(2 / 3.14159265358979323846264L) * (x + 0.044715L * x * x * x)); }, -6, 6, 60, 60},
    {"silu", Unary::silu, [](auto x, auto) { return x * logistic(x); }, -80, 80, 4, 4},
    {"softplus", Unary::softplus, [](auto x, auto) { return std::max(x, 0.0L) + std::log1p(std::exp(-std::abs(x))); }, -80, 80, 4, 4},
    {"pow 3", Unary::pow, [](auto x, auto p) { return std::pow(x, p); }, -4, 4, 1, 1, 3},
    {"pow 2", Unary::pow, [](auto x, auto p) { return std::pow(x, p); }, -4, 4, 0.5, 0.5, 2},
    {"pow 1", Unary::pow, [](auto x, auto) { return x; }, -4, 4, 0, 0, 1},
    {"pow 0", Unary::pow, [](auto, auto) { return 1.0L; }, -4, 4, 0, 0, 0},
    {"pow -0.75", Unary::pow, [](auto x, auto p) { return std::pow(x, p); }, 0.1, 4, 1, 1, -0.75},
    {"add_scalar", Unary::add_scalar, [](auto x, auto p) { return x + p; }, -5, 5, 0.5, 0.5, 0.375},
    {"mul_scalar", Unary::mul_scalar, [](auto x, auto p) { return x * p; }, -5, 5, 0.5, 0.5, -1.125},
    {"rsub_scalar", Unary::rsub_scalar, [](auto x, auto p) { return p - x; }, -5, 5, 0.5, 0.5, 0.375},
    {"rdiv_scalar", Unary::rdiv_scalar, [](auto x, auto p) { return p / x; }, 0.1, 5, 0.5, 0.5, 0.375},
    {"clamp_min", Unary::clamp_min, [](auto x, auto p) { return std::max(x, p); }, -5, 5, 0, 0, 0.5, 0.5},
    {"clamp_max", Unary::clamp_max, [](auto x, auto p) { return std::min(x, p); }, -5, 5, 0, 0, 0.5, 0.5},
    {"sin", Unary::sin, [](auto x, auto) { return std::sin(x); }, -1.5, 1.5, 3, 3},
    {"cos", Unary::cos, [](auto x, auto) { return std::cos(x); }, -1.5, 1.5, 3, 3},
    {"erf", Unary::erf, [](auto x, auto) { return std::erf(x); }, -7, 7, 2.5, 2.5},
    {"log1p", Unary::log1p, [](auto x, auto) { return std::log1p(x); }, -0.9, 20, 4, 4},
    {"expm1", Unary::expm1, [](auto x, auto) { return std::expm1(x); }, -20, 80, 4, 4},
    {"sign", Unary::sign, [](auto x, auto) { return x > 0   ? 1.0L
                                                    : x < 0 ? -1.0L
                                                            : 0.0L; }, -5, 5, 0, 0, 0, 0},
    {"floor", Unary::floor, [](auto x, auto) { return std::floor(x); }, -5, 5, 0, 0},
};

/// An even grid, dense enough for every branch, of odd length.
template <class T>
std::vector<T> grid(double low, double high) {
  std::vector<T> x(10007);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<T>(low + (high - low) * static_cast<double>(i) / static_cast<double>(x.size() - 1));
  return x;
}

template <class T>
std::vector<T> forward(Unary op, const std::vector<T>& x, double p) {
  std::vector<T> y(x.size(), T(-77));
  CpuBackend::elementwise<T>().unary(op, static_cast<int64_t>(x.size()), x.data(), y.data(), p);
  return y;
}

template <class T>
T forward_one(Unary op, double x, double p = 0) {
  return forward(op, std::vector<T>{static_cast<T>(x)}, p)[0];
}

template <class T>
std::vector<T> backward(Unary op, const std::vector<T>& x, const std::vector<T>& y, std::vector<T> dy, double p) {
  const SavedBy saved = kernels::saved_by(op);
  const T *px = saved == SavedBy::input ? x.data() : nullptr, *py = saved == SavedBy::output ? y.data() : nullptr;
  CpuBackend::elementwise<T>().unary_backward(op, static_cast<int64_t>(x.size()), px, py, dy.data(), dy.data(), p);  // dx may be dy
  return dy;
}

template <class T>
T backward_one(Unary op, double x, double p = 0) {
  const std::vector<T> in = {static_cast<T>(x)};
  return backward(op, in, forward(op, in, p), {T(1)}, p)[0];
}

}  // namespace

TEMPLATE_TEST_CASE("unary: values within a few units in the last place", "[kernels]", float, double) {
  for (const UnaryCase& c : kUnary) {
    const auto x = grid<TestType>(c.low, c.high);
    const auto y = forward(c.op, x, c.p);
    double worst = 0;
    size_t where = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double off = ulps(y[i], c.value(x[i], c.p));
      if (!(off <= worst)) worst = off, where = i;
    }
    CAPTURE(c.name, x[where], y[where]);
    CHECK(worst <= (sizeof(TestType) == 4 ? c.ulp_f32 : c.ulp_f64));
  }
}

TEST_CASE("unary_backward: central differences in f64", "[kernels]") {
  constexpr double kStep = 1e-5;
  for (const UnaryCase& c : kUnary) {
    const auto x = grid<double>(c.low, c.high);
    const auto dy = random_values<double>(static_cast<int64_t>(x.size()), 5, 0.5, 2);
    const auto dx = backward(c.op, x, forward(c.op, x, c.p), dy, c.p);
    double worst = 0, largest = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      if (std::abs(x[i] - c.kink) < 2 * kStep || (c.op == Unary::floor && std::abs(x[i] - std::round(x[i])) < 2 * kStep)) continue;
      const long double h = kStep * std::max(1.0L, std::abs(static_cast<long double>(x[i]))) * (c.low > 0 ? 0.01L : 1.0L);
      const double slope = static_cast<double>((c.value(x[i] + h, c.p) - c.value(x[i] - h, c.p)) / (2 * h));
      worst = std::max(worst, std::abs(dx[i] - dy[i] * slope) / std::max(1.0, std::abs(dy[i] * slope)));
      largest = std::max(largest, std::abs(dx[i]));
      if (std::isnan(dx[i])) worst = infinity;
    }
    CAPTURE(c.name);
    CHECK(worst < 1e-6);  // third derivatives times h^2, relative: exp at 88 has h = 9e-4
    const bool flat = c.op == Unary::sign || c.op == Unary::floor || (c.op == Unary::pow && c.p == 0);
    CHECK((largest == 0) == flat);
  }
}

TEMPLATE_TEST_CASE("unary_backward agrees between f32 and f64", "[kernels]", float) {
  for (const UnaryCase& c : kUnary) {
    const auto x = grid<float>(c.low, c.high);
    const std::vector<double> wide(x.begin(), x.end());
    const auto dy = random_values<float>(static_cast<int64_t>(x.size()), 5, 0.5, 2);
    const std::vector<double> wide_dy(dy.begin(), dy.end());
    const auto dx = backward(c.op, x, forward(c.op, x, c.p), dy, c.p);
    const auto expected = backward(c.op, wide, forward(c.op, wide, c.p), wide_dy, c.p);
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) worst = std::max(worst, std::abs(dx[i] - expected[i]) / std::max(1.0, std::abs(expected[i])));
    CAPTURE(c.name);
    CHECK(worst < 4e-6);  // gelu_tanh: an exponent of 25 rounded to f32
  }
}

TEMPLATE_TEST_CASE("unary: infinities, NaN and overflow", "[kernels]", float, double) {
  using T = TestType;
  for (const UnaryCase& c : kUnary) {
    if (std::string(c.name) == "pow 0") continue;
    CAPTURE(c.name);
    CHECK(std::isnan(forward_one<T>(c.op, not_a_number, c.p)));
  }
  struct Value {
    Unary op;
    double x, y;
    double p = 0;
  };
  const double inf = infinity;
  const Value values[] = {
      {Unary::exp, -inf, 0},
      {Unary::exp, inf, inf},
      {Unary::exp, 1e30, inf},
      {Unary::exp, -1e30, 0},
      {Unary::exp, 0, 1},
      {Unary::log, 0, -inf},
      {Unary::log, inf, inf},
      {Unary::log, -1, not_a_number},
      {Unary::log, -inf, not_a_number},
      {Unary::log, 1, 0},
      {Unary::log1p, -1, -inf},
      {Unary::log1p, -2, not_a_number},
      {Unary::log1p, inf, inf},
      {Unary::log1p, 0, 0},
      {Unary::expm1, -inf, -1},
      {Unary::expm1, inf, inf},
      {Unary::tanh, inf, 1},
      {Unary::tanh, -inf, -1},
      {Unary::tanh, 1e30, 1},
      {Unary::sigmoid, inf, 1},
      {Unary::sigmoid, -inf, 0},
      {Unary::sigmoid, 100, 1},
      {Unary::sigmoid, -1e30, 0},
      {Unary::gelu, inf, inf},
      {Unary::gelu, -inf, 0},
      {Unary::gelu, 100, 100},
      {Unary::gelu_tanh, inf, inf},
      {Unary::gelu_tanh, -inf, 0},
      {Unary::silu, inf, inf},
      {Unary::silu, -inf, 0},
      {Unary::softplus, inf, inf},
      {Unary::softplus, -inf, 0},
      {Unary::softplus, 1000, 1000},
      {Unary::softplus, -1000, 0},
      {Unary::erf, inf, 1},
      {Unary::erf, -inf, -1},
      {Unary::sin, inf, not_a_number},
      {Unary::cos, -inf, not_a_number},
      {Unary::sqrt, -1, not_a_number},
      {Unary::reciprocal, 0, inf},
      {Unary::relu, -inf, 0},
      {Unary::clamp_min, -inf, 2, 2},
      {Unary::clamp_max, inf, 2, 2},
      {Unary::sign, -inf, -1},
      {Unary::pow, 0, inf, -1},
      {Unary::floor, -0.5, -1},
      {Unary::sign, 0, 0},
      {Unary::abs, -inf, inf},
  };
  for (const Value& v : values) {
    CAPTURE(static_cast<int>(v.op), v.x);
    CHECK(ulps(forward_one<T>(v.op, v.x, v.p), v.y) == 0);
  }
  CHECK(forward_one<T>(Unary::sigmoid, -100) < 1e-42);
  CHECK(ulps(forward_one<T>(Unary::sin, 1e5), std::sin(1e5L)) <= 1);  // beyond the range of the vector form
  CHECK(ulps(forward_one<T>(Unary::cos, 1e5), std::cos(1e5L)) <= 1);
}

TEMPLATE_TEST_CASE("unary_backward: kinks and ends", "[kernels]", float, double) {
  using T = TestType;
  CHECK(backward_one<T>(Unary::relu, 0) == 0);
  CHECK(backward_one<T>(Unary::abs, 0) == 0);
  CHECK(backward_one<T>(Unary::leaky_relu, 0, 0.25) == T(0.25));
  CHECK(backward_one<T>(Unary::clamp_min, 0.5, 0.5) == 1);
  CHECK(backward_one<T>(Unary::clamp_max, 0.5, 0.5) == 1);
  CHECK(backward_one<T>(Unary::clamp_min, 0.25, 0.5) == 0);
  CHECK(std::isinf(backward_one<T>(Unary::sqrt, 0)));
  CHECK(backward<T>(Unary::sqrt, {0}, {0}, {0}, 0)[0] == 0);
  for (const Unary op : {Unary::gelu, Unary::gelu_tanh, Unary::silu, Unary::softplus}) {
    CHECK(backward_one<T>(op, infinity) == 1);
    CHECK(backward_one<T>(op, -infinity) == 0);
    CHECK(std::isnan(backward_one<T>(op, not_a_number)));
  }
}

TEST_CASE("elementwise: in place, at every length and offset, with the same bits", "[kernels]") {
  const auto& kernel = CpuBackend::elementwise<float>();
  const auto x = random_values<float>(200003, 1, -4, 4);
  std::vector<float> whole(x.size());
  kernel.unary(Unary::gelu, static_cast<int64_t>(x.size()), x.data(), whole.data(), 0);
  for (const int count : {1, 2, 3, 8}) {
    const Threads threads(count);
    auto y = x;
    kernel.unary(Unary::gelu, static_cast<int64_t>(y.size()), y.data(), y.data(), 0);
    CHECK(same_bits(y, whole));
  }
  bool right = true;
  for (int64_t n = 0; n <= 70; ++n) {
    std::vector<float> y(static_cast<size_t>(n) + 2, -5);
    kernel.unary(Unary::gelu, n, x.data() + 3, y.data() + 1, 0);
    right = right && y.front() == -5 && y.back() == -5 && std::equal(y.begin() + 1, y.end() - 1, whole.begin() + 3);
  }
  CHECK(right);
}

TEMPLATE_TEST_CASE("sin and cos of far arguments leave their neighbours alone", "[kernels]", float, double) {
  const auto& elementwise = CpuBackend::elementwise<TestType>();
  std::vector<TestType> x = random_values<TestType>(1000, 4, -100, 100);
  const std::vector<TestType> near = x;
  for (size_t i = 5; i < x.size(); i += 11) x[i] = TestType(40000.5);
  for (const Unary op : {Unary::sin, Unary::cos}) {
    std::vector<TestType> far_y(x.size()), near_y(x.size());
    elementwise.unary(op, 1000, x.data(), far_y.data(), 0);
    elementwise.unary(op, 1000, near.data(), near_y.data(), 0);
    CHECK(far_y[5] == (op == Unary::sin ? std::sin(x[5]) : std::cos(x[5])));
    for (size_t i = 5; i < x.size(); i += 11) near_y[i] = far_y[i];
    CHECK(same_bits(far_y, near_y));
  }
}

TEMPLATE_TEST_CASE("a denormal number to a power is 0 to that power", "[kernels]", float, double) {
  const std::vector<TestType> x(20, std::numeric_limits<TestType>::min() / 2);
  std::vector<TestType> y(x.size(), 7), z(x.size(), 7);
  const std::vector<TestType> half(x.size(), TestType(0.5));
  CpuBackend::elementwise<TestType>().unary(Unary::pow, 20, x.data(), y.data(), 0.5);
  CpuBackend::elementwise<TestType>().binary(kernels::Binary::pow, line(20), x.data(), half.data(), z.data());
  CHECK(same_bits(y, std::vector<TestType>(20)));
  CHECK(same_bits(z, std::vector<TestType>(20)));
}
