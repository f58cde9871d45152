#include <lamina/nn/init.h>

#include <algorithm>
#include <cmath>

#include <lamina/nn/layers.h>

#include "support/allclose.h"
#include "support/catch.h"

using namespace lamina;
using namespace lamina::test;
using nn::Init;

namespace {

struct Moments {
  double mean = 0, std = 0, largest = 0;
};

Moments moments(const Tensor& x) {
  const auto v = values(x);
  Moments m;
  for (const double value : v) m.mean += value / static_cast<double>(v.size());
  for (const double value : v) {
    m.std += (value - m.mean) * (value - m.mean) / static_cast<double>(v.size());
    m.largest = std::max(m.largest, std::abs(value));
  }
  m.std = std::sqrt(m.std);
  return m;
}

// Sampling: with n draws the mean is off by std / sqrt(n) and the deviation by about std / sqrt(2 n); five of these.
void check_moments(const Init& init, const Shape& shape, double std) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    const Moments m = moments(nn::draw(init, shape, dtype, Rng(7)));
    const double off = 5 * std / std::sqrt(static_cast<double>(shape.numel()));
    CHECK(std::abs(m.mean) < off);
    CHECK(std::abs(m.std - std) < off);
    if (init.kind == Init::Kind::uniform) {
      CHECK(m.largest <= init.a);
      CHECK(m.largest > 0.99 * init.a);
    }
  }
}

/// The Gram matrix of the rows (or columns) [begin, end) of a [rows, columns] matrix minus gain^2 I: its largest element.
double gram_error(const std::vector<double>& w, int64_t columns, int64_t begin, int64_t end, bool of_rows, double gain) {
  const int64_t n = of_rows ? end - begin : columns, m = of_rows ? columns : end - begin;
  const auto at = [&](int64_t i, int64_t j) {
    return of_rows ? w[static_cast<size_t>((begin + i) * columns + j)] : w[static_cast<size_t>((begin + j) * columns + i)];
  };
  double worst = 0;
  for (int64_t a = 0; a < n; ++a)
    for (int64_t b = 0; b < n; ++b) {
      double sum = 0;
      for (int64_t k = 0; k < m; ++k) sum += at(a, k) * at(b, k);
      worst = std::max(worst, std::abs(sum - (a == b ? gain * gain : 0)));
    }
  return worst;
}

}  // namespace

TEST_CASE("initialisers have the variance that their papers give") {
  const Shape weight{300, 200};  // fan_in 200, fan_out 300
  check_moments(nn::init::xavier_uniform(weight), weight, std::sqrt(2.0 / 500));
  check_moments(nn::init::xavier_uniform(weight, 3), weight, 3 * std::sqrt(2.0 / 500));
  check_moments(nn::init::xavier_normal(weight, 2), weight, 2 * std::sqrt(2.0 / 500));
  check_moments(nn::init::he_uniform(weight), weight, std::sqrt(2.0 / 200));
  check_moments(nn::init::he_normal(weight), weight, std::sqrt(2.0 / 200));
  check_moments(nn::init::pytorch_default(weight), weight, std::sqrt(1.0 / 200 / 3));
  check_moments(nn::init::normal(0.01), weight, 0.01);
  check_moments(nn::init::uniform(0.3), weight, 0.3 / std::sqrt(3.0));
  CHECK(nn::init::pytorch_default(weight).a == Approx(1 / std::sqrt(200.0)));
  CHECK(nn::init::xavier_uniform({8, 4, 3, 3}).a == Approx(std::sqrt(6.0 / (36 + 72))));  // fans count the space
  CHECK_THROWS_WITH(nn::init::he_normal({10}), "[init] a fan needs a weight of rank >= 2, got [10]");
  CHECK_THROWS_WITH(nn::init::uniform(-1), contains("bound >= 0"));
  CHECK_THROWS_WITH(nn::init::normal(-1), contains("standard deviation >= 0"));
}

TEST_CASE("orthogonal weights have orthonormal rows or columns, times gain") {
  const double gain = 1.5;
  for (const auto& [rows, columns] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {1, 5}, {5, 1}, {7, 7}, {33, 20}, {20, 33}, {64, 100}}) {
    const auto w = values(nn::draw(nn::init::orthogonal(gain), {rows, columns}, DType::f64, Rng(3)));
    INFO(rows << " x " << columns);
    CHECK(gram_error(w, columns, 0, rows, rows <= columns, gain) < f64_rounding * 10);
  }
  // The trailing axes are one.
  const auto filters = values(nn::draw(nn::init::orthogonal(), {6, 2, 3, 3}, DType::f64, Rng(3)));
  CHECK(gram_error(filters, 18, 0, 6, true, 1) < f64_rounding * 10);
  // The four gates of a recurrent weight, each orthogonal on its own and different from the others.
  const Tensor gates = nn::draw(nn::init::orthogonal(1, 4), {20, 5}, DType::f64, Rng(3));
  const auto w = values(gates);
  for (int64_t gate = 0; gate < 4; ++gate) CHECK(gram_error(w, 5, gate * 5, gate * 5 + 5, true, 1) < f64_rounding * 10);
  CHECK(w[0] != w[25]);
  // Uniform over the group: the determinant of 1 x 1 is as often 1 as -1, and R's signs do not show in the corner.
  int positive = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) positive += element(nn::draw(nn::init::orthogonal(), {3, 3}, DType::f64, Rng(seed)), 0) > 0;
  CHECK(std::abs(positive - 100) < 50);  // seven standard deviations
  CHECK(nn::draw(nn::init::orthogonal(), {0, 3}, DType::f32, Rng(1)).numel() == 0);
  CHECK_THROWS_WITH(nn::draw(nn::init::orthogonal(), {4}, DType::f32, Rng(1)), contains("rank >= 2, got [4]"));
  CHECK_THROWS_WITH(nn::draw(nn::init::orthogonal(1, 3), {4, 4}, DType::f32, Rng(1)), contains("4 rows do not divide into 3 blocks"));
}

TEST_CASE("names of initialisers") {
  const Shape weight{30, 20};
  CHECK(nn::init::parse("pytorch", weight).a == Approx(1 / std::sqrt(20.0)));
  CHECK(nn::init::parse("xavier_uniform", weight).a == Approx(std::sqrt(6.0 / 50)));
  CHECK(nn::init::parse("xavier_normal", weight).a == Approx(std::sqrt(2.0 / 50)));
  CHECK(nn::init::parse("he_uniform", weight).a == Approx(std::sqrt(6.0 / 20)));
  CHECK(nn::init::parse("he_normal", weight).a == Approx(std::sqrt(2.0 / 20)));
  CHECK(nn::init::parse("orthogonal", weight).kind == Init::Kind::orthogonal);
  CHECK(nn::init::parse("normal:0.02", weight).a == 0.02);
  CHECK(nn::init::parse("uniform:1e-1", {7}).a == 0.1);
  CHECK(nn::init::parse("constant:-0.5", {7}).a == -0.5);
  CHECK(nn::init::parse("zeros", {7}).a == 0);
  CHECK(nn::init::parse("ones", {7}).a == 1);
  CHECK_THROWS_AS(nn::init::parse("glorot", weight), InputError);
  CHECK_THROWS_WITH(nn::init::parse("glorot", weight), contains("[init] unknown 'glorot'; expected one of pytorch, xavier_uniform, "));
  for (const char* text : {"normal", "normal:", "normal:abc", "normal:1x", "normal:-1", "normal:inf", "uniform:nan", "beta:2", ""})
    CHECK_THROWS_AS(nn::init::parse(text, weight), InputError);
  CHECK_THROWS_WITH(nn::init::parse("he_normal", {7}), "[init] 'he_normal' needs a weight of rank >= 2, got [7]");
}

TEST_CASE("initial values depend on the seed and the path alone") {
  struct Pair : nn::Module {
    bool swapped = false;
    nn::Linear a{5, 7}, b{5, 7};
    void members(nn::Visitor& v) override {
      if (swapped) v("b", b);
      v("a", a);
      if (!swapped) v("b", b);
    }
  };
  Pair one, two;
  two.swapped = true;
  init(one, 3);
  init(two, 3);
  CHECK(same_bits(one.a.weight.value(), two.a.weight.value()));
  CHECK(same_bits(one.b.bias.value(), two.b.bias.value()));
  CHECK_FALSE(same_bits(one.a.weight.value(), one.b.weight.value()));
  const Tensor before = one.a.weight.value().clone();
  init(one, 4);
  CHECK_FALSE(same_bits(one.a.weight.value(), before));
  init(one, 3);
  CHECK(same_bits(one.a.weight.value(), before));
}
