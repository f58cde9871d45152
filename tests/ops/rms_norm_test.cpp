// RMS norm, whole and partial.
#include <lamina/autograd/graph.h>
#include <lamina/ops/elementwise.h>
#include <lamina/ops/matmul.h>
#include <lamina/ops/norm.h>
#include <lamina/ops/reduce.h>
#include <lamina/ops/shape_ops.h>

#include <limits>

#include "ops/norm_golden.h"

using namespace lamina;
using namespace lamina::test;

namespace {

/// f32 rounding of x-hat, times rstd in gradients (checks are relative to the largest element).
constexpr double f32_normalised = 2e-5;

int64_t part_of(int64_t n, double p) { return static_cast<int64_t>(std::ceil(static_cast<double>(n) * p - 1e-9)); }

Tensor composed_rms_norm(const Tensor& x, const Shape& normalized, const Tensor& gain, const Tensor& bias, double p, double eps) {
  std::vector<int64_t> rows{x.numel() / normalized.numel(), normalized.numel()};
  const Tensor flat = reshape(x, rows), part = slice(flat, 1, 0, part_of(rows[1], p));
  Tensor y = reshape(flat / sqrt(mean(part * part, {1}, true) + eps), x.shape());
  if (gain.defined()) y = y * gain;
  return bias.defined() ? y + bias : y;
}

Function fused(const Shape& normalized, double p = 1, double eps = 1e-5) {
  return [=](const std::vector<Tensor>& v) { return rms_norm(v[0], normalized, v[1], v[2], {.partial = p, .eps = eps}); };
}
Function composed(const Shape& normalized, double p = 1, double eps = 1e-5) {
  return [=](const std::vector<Tensor>& v) { return composed_rms_norm(v[0], normalized, v[1], v[2], p, eps); };
}

std::vector<Tensor> inputs(const Shape& x, const Shape& normalized, DType dtype = DType::f32, double offset = 0, double sd = 1) {
  return {normal(x, 1, dtype, offset, sd), normal(normalized, 2, dtype), normal(normalized, 3, dtype)};
}

}  // namespace

TEST_CASE("rms_norm: worked values", "[ops][norm]") {
  // Mean squares 12.5 and 4, without and with gain and bias.
  const Tensor x = tensor<double>({3, 4, 2, -2}, {2, 2});
  check_close(rms_norm(x, {2}, {}, {}, {.eps = 0}), {3 / std::sqrt(12.5), 4 / std::sqrt(12.5), 1, -1}, f64_rounding);
  const Tensor gain = tensor<double>({2, 3}, {2}), bias = tensor<double>({10, 20}, {2});
  check_close(rms_norm(x, {2}, gain, bias, {.eps = 3.5}), {10 + 6.0 / 4, 20 + 12.0 / 4, 10 + 4 / std::sqrt(7.5), 20 - 6 / std::sqrt(7.5)},
              f64_rounding);
  // Partial: of [3, 4, 12] at p = 0.4 the first ceil(1.2) = 2 are measured, at p = 1/3 the first alone.
  const Tensor row = tensor<double>({3, 4, 12}, {1, 3});
  check_close(rms_norm(row, {3}, {}, {}, {.partial = 0.4, .eps = 0}), {3 / std::sqrt(12.5), 4 / std::sqrt(12.5), 12 / std::sqrt(12.5)}, f64_rounding);
  check_close(rms_norm(row, {3}, {}, {}, {.partial = 1.0 / 3, .eps = 0}), {1, 4.0 / 3, 4}, f64_rounding);
  // dx = rstd (a - x-hat mean(a x-hat)) for the measured entries, rstd a for the others: here rstd = 1/2, x-hat = [1, -1, 3], a = dy = [1, 0, 1]. The
  // others' gradients reach the measured ones through the mean square: sum(a x-hat) = 1 + 3 = 4, over k = 2.
  const auto run = evaluate([](const auto& v) { return rms_norm(v[0], {3}, {}, {}, {.partial = 0.5, .eps = 0}); }, {tensor<double>({2, -2, 6}, {3})},
                            tensor<double>({1, 0, 1}, {3}));
  check_close(run.gradients[0], {0.5 * (1 - 2), 0.5 * 2, 0.5}, f64_rounding);
}

TEST_CASE("rms_norm: which part is measured", "[ops][norm]") {
  // Whole products count as whole though 0.07 * 100 is a little more than 7 in binary; the least is one entry.
  const std::pair<std::pair<int64_t, double>, int64_t> cases[] = {{{100, 0.07}, 7}, {{16, 0.0625}, 1}, {{1000, 0.0625}, 63}, {{10, 0.1}, 1},
                                                                  {{10, 1e-9}, 1},  {{7, 1}, 7},       {{30, 0.1}, 3},       {{1, 0.3}, 1}};
  for (const auto& [what, k] : cases) {
    const auto [n, p] = what;
    INFO(p << " of " << n);
    // Entries 2 in the first k, else 1e3: the first becomes 1.
    std::vector<float> x(static_cast<size_t>(n), 1e3f);
    std::fill(x.begin(), x.begin() + k, 2.f);
    const auto y = values(rms_norm(tensor(x, {n}), {n}, {}, {}, {.partial = p, .eps = 0}));
    CHECK(y[0] == 1);
    if (k < n) CHECK(y.back() == 500);
  }
}

TEST_CASE("rms_norm: equals the version out of elementary ops", "[ops][norm]") {
  for (const int64_t width : {1, 2, 3, 31, 33, 127, 1000, 4100})
    for (const int64_t rows : {1, 3, 33})
      for (const double p : {1.0, 0.5, 0.0625}) {
        INFO(rows << " rows of " << width << ", part " << p);
        check_same(fused({width}, p), composed({width}, p), inputs({rows, width}, {width}, DType::f32, 0.5), f32_normalised);
        if (width > 3) check_same(fused({width}, p), composed({width}, p), inputs({rows, width}, {width}, DType::f64, 1e4, 0.1), 1e-9);
      }
  for (const auto& [shape, normalized] : std::vector<std::pair<Shape, Shape>>{{{9}, {9}}, {{2, 3, 8}, {3, 8}}, {{2, 1, 3, 2, 8}, {3, 2, 8}}}) {
    INFO(shape.str() << " over " << normalized.str());
    for (const double p : {1.0, 0.3}) check_same(fused(normalized, p), composed(normalized, p), inputs(shape, normalized, DType::f64), 1e-11);
  }
}

TEST_CASE("rms_norm: gradients", "[ops][norm][gradcheck]") {
  for (const int64_t width : {1, 8, 33, 127})
    for (const double p : {1.0, 0.2}) {
      const auto v = inputs({5, width}, {width}, DType::f64, 1, 2);
      INFO(width << ", part " << p);
      const double eps = width == 1 ? 1 : 1e-5;  // one entry over its own size is 1 whatever it is
      check_gradients(fused({width}, p, eps), v);
      const Shape w{width};
      check_gradients([=](const auto& in) { return rms_norm(in[0], w, in[1], {}, {.partial = p, .eps = eps}); }, {v[0], v[1]});
      check_gradients([=](const auto& in) { return rms_norm(in[0], w, {}, {}, {.partial = p, .eps = eps}); }, {v[0]});
    }
}

TEST_CASE("rms_norm: PyTorch's operations, step by step", "[ops][norm][golden]") {
  const Golden golden("rms_norm");
  int cases = 0;
  for (; golden.has(std::to_string(cases) + ".x"); ++cases) {
    const std::string at = std::to_string(cases) + ".";
    for (const auto& [dtype, tolerance] : {std::pair{DType::f64, 1e-10}, std::pair{DType::f32, f32_normalised}}) {
      INFO("case " << cases << " " << to_string(dtype));
      const Tensor gain = golden(at + "gain", dtype);
      const RMSNormOptions options{.partial = golden.number(at + "partial"), .eps = golden.number(at + "eps")};
      const auto run = evaluate([&](const auto& v) { return rms_norm(v[0], gain.shape(), v[1], v[2], options); },
                                {golden(at + "x", dtype), gain, golden(at + "bias", dtype)}, golden(at + "dy", dtype));
      check_golden(run, golden, at, tolerance, 1e3);  // rstd is 1000 where x is 1e-3
    }
  }
  CHECK(cases == 5);
}

TEST_CASE("rms_norm: eps inside the root, overflow, zeros (A05, A06)", "[ops][norm][pitfall]") {
  const auto plain = [](const std::vector<float>& x, double eps) {
    const Tensor row = tensor(x, {1, static_cast<int64_t>(x.size())});
    return rms_norm(row, {row.size(1)}, {}, {}, {.eps = eps});
  };
  check_close(plain({1e-3f, 0, 0, 0}, 1e-6), {0.894427, 0, 0, 0}, six_digits);
  check_close(plain({3e19f, 4e19f}, 1e-5), {0.848528, 1.131371}, six_digits);
  check_close(plain({3e-30f, 4e-30f}, 0), {0.848528, 1.131371}, six_digits);
  const auto none =
      evaluate([](const auto& v) { return rms_norm(v[0], {4}, {}, {}, {.eps = 1e-6}); }, {zeros({1, 4})}, tensor<float>({1, 0, 0, 0}, {1, 4}));
  check_close(none.y, {0, 0, 0, 0}, exact);
  check_close(none.gradients[0], {1000, 0, 0, 0}, six_digits);
  // Without eps a row of zeros stays zeros, and so does its gradient.
  const auto bare =
      evaluate([](const auto& v) { return rms_norm(v[0], {4}, {}, {}, {.eps = 0}); }, {zeros({1, 4})}, tensor<float>({1, 0, 0, 0}, {1, 4}));
  check_close(bare.y, {0, 0, 0, 0}, exact);
  check_close(bare.gradients[0], {0, 0, 0, 0}, exact);
  // The default eps is the dtype's machine epsilon.
  check_close(rms_norm(tensor<float>({1e-4f}, {1}), {1}), {1e-4 / std::sqrt(1e-8 + 1.1920929e-7)}, six_digits);
  check_close(rms_norm(tensor<double>({1e-8}, {1}), {1}), {1e-8 / std::sqrt(1e-16 + 2.220446049250313e-16)}, 1e-10);
}

TEST_CASE("rms_norm: bad rows, empty tensors, column sums (A11, A12, A16, A19)", "[ops][norm][pitfall][threads]") {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const auto fn = [](const auto& v) { return rms_norm(v[0], {3}); };
  const Tensor dy = tensor<float>({1, 2, 3}, {1, 3});
  const auto alone = evaluate(fn, {tensor<float>({1, 2, 3}, {1, 3})}, dy);
  for (const float bad : {inf, nan}) {
    const auto run = evaluate(fn, {tensor<float>({1, 2, bad, 1, 2, 3}, {2, 3})}, concat({dy, dy}));
    const auto y = values(run.y), dx = values(run.gradients[0]);
    for (size_t i = 0; i < 3; ++i) {
      CHECK((std::isnan(y[i]) && std::isnan(dx[i])));
      CHECK((y[3 + i] == values(alone.y)[i] && dx[3 + i] == values(alone.gradients[0])[i]));
    }
  }
  for (const Shape& shape : {Shape{1, 0, 10}, Shape{0, 10}}) {
    const auto run = evaluate(fused({10}, 0.3), {zeros(shape), normal({10}, 1), normal({10}, 2)}, zeros(shape));
    CHECK(run.y.shape() == shape);
    check_close(run.gradients[1], zeros({10}), exact);
    check_close(run.gradients[2], zeros({10}), exact);
  }
  const auto in = inputs({8, 1024, 7}, {7});
  for (const int threads : thread_counts({1, 2, 4, 8})) {
    const Threads guard(threads);
    for (int repeat = 0; repeat < 10; ++repeat)
      REQUIRE(values(evaluate(fused({7}, 0.5), in, ones({8, 1024, 7})).gradients[2]) == std::vector<double>(7, 8192.0));
  }
  const Tensor x = normal({3, 8}, 1);
  check_close(rms_norm(transpose(x), {3}), rms_norm(transpose(x).clone(), {3}), exact);
}

TEST_CASE("rms_norm: a row of twenty million (A23)", "[ops][norm][pitfall][large]") {
  constexpr int64_t width = 20'000'000;
  CHECK(slice(rms_norm(ones({width}), {width}), 0, width - 1).item() == Approx(1).epsilon(1e-6));
}

TEST_CASE("rms_norm: does not see x -> a x, sees x -> x + b (the paper's table)", "[ops][norm][paper]") {
  const Tensor x = normal({17, 101}, 9, DType::f64, 3, 2);
  for (const double p : {1.0, 0.0625}) {
    const RMSNormOptions options{.partial = p, .eps = 0};
    const Tensor y = rms_norm(x, {101}, {}, {}, options);
    check_close(rms_norm(x * 7.5, {101}, {}, {}, options), y, 1e-12);
    CHECK(max_difference(rms_norm(x + 1.0, {101}, {}, {}, options), y) > 0.01);
  }
}

TEST_CASE("rms_norm: the same bits for every thread count; what it saves", "[ops][norm][threads]") {
  for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{257, 613}, {4, 1000}, {2, 100'003}, {70'001, 3}})
    for (const double p : {1.0, 0.1}) check_thread_counts(fused({width}, p), inputs({rows, width}, {width}));
  const int64_t before = autograd::saved_bytes();
  const auto in = inputs({8, 16}, {16});
  Tensor x = in[0];
  const Tensor y = rms_norm(x.set_requires_grad(), {16}, in[1], in[2]);
  CHECK(autograd::saved_bytes() - before == x.nbytes() + in[1].nbytes() + 8 * 4);
}

TEST_CASE("rms_norm: errors", "[ops][norm][errors]") {
  const Tensor x = zeros({2, 4});
  CHECK_THROWS_WITH(rms_norm(x, {4}, ones({3})), contains("[rms_norm] gain: expected [4], got [3] (x is [2, 4])"));
  CHECK_THROWS_WITH(rms_norm(x, {3}), contains("[rms_norm] x: expected a shape that ends in [3], got [2, 4]"));
  CHECK_THROWS_WITH(rms_norm(x, {}), contains("[rms_norm] normalized_shape: expected at least one axis"));
  CHECK_THROWS_WITH(rms_norm(x, {4}, {}, {}, {.partial = 0}), contains("[rms_norm] partial: expected a number in (0, 1], got 0"));
  CHECK_THROWS_WITH(rms_norm(x, {4}, {}, {}, {.partial = std::nan("")}), contains("got nan"));
  CHECK_THROWS_WITH(rms_norm(x, {4}, {}, {}, {.eps = -1}), contains("[rms_norm] eps: expected a number >= 0, got -1"));
  CHECK_THROWS_WITH(rms_norm(zeros({2, 4}, DType::i64), {4}), contains("[rms_norm] expected") && contains("i64"));
}
