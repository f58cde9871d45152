// Layer normalisation, and what the paper's Table 1 says of both normalisers. Batch normalisation: batch_norm_test.cpp.
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

/// Near zero variance the gradient itself carries rstd; f32 rounding of x-hat is multiplied by it (checks are relative to the largest element).
constexpr double f32_normalised = 2e-5;
/// Rows at offset 1e4 with deviation 0.1: the op sees the rounded inputs, so only its own arithmetic counts.
constexpr double f32_offset = 1e-4;

Tensor composed_layer_norm(const Tensor& x, const Shape& normalized, const Tensor& gain, const Tensor& bias, double eps) {
  Axes axes;
  for (int i = 1; i <= normalized.rank(); ++i) axes.push_back(-i);
  const Tensor d = x - mean(x, axes, true);
  Tensor y = d / sqrt(mean(d * d, axes, true) + eps);
  if (gain.defined()) y = y * gain;
  return bias.defined() ? y + bias : y;
}

Function fused(const Shape& normalized, double eps = 1e-5) {
  return [=](const std::vector<Tensor>& v) { return layer_norm(v[0], normalized, v[1], v[2], eps); };
}
Function composed(const Shape& normalized, double eps = 1e-5) {
  return [=](const std::vector<Tensor>& v) { return composed_layer_norm(v[0], normalized, v[1], v[2], eps); };
}

std::vector<Tensor> inputs(const Shape& x, const Shape& normalized, DType dtype = DType::f32, double offset = 0, double sd = 1) {
  return {normal(x, 1, dtype, offset, sd), normal(normalized, 2, dtype), normal(normalized, 3, dtype)};
}

Tensor row(const std::vector<float>& v) { return tensor(v, {1, static_cast<int64_t>(v.size())}); }

}  // namespace

TEST_CASE("layer_norm: worked values", "[ops][norm]") {
  // Mean 3, variance 4: x-hat = -1, 1 with eps 0; then gain and bias.
  const Tensor x = tensor<double>({1, 5, 2, 2, 2, 8}, {3, 2});
  check_close(layer_norm(x, {2}, Tensor(), Tensor(), 0.5), {-2 / std::sqrt(4.5), 2 / std::sqrt(4.5), 0, 0, -3 / std::sqrt(9.5), 3 / std::sqrt(9.5)},
              f64_rounding);
  const Tensor gain = tensor<double>({2, 3}, {2}), bias = tensor<double>({10, 20}, {2});
  const Tensor y = layer_norm(tensor<double>({1, 5}, {1, 2}), {2}, gain, bias, 0);
  check_close(y, {8, 23}, f64_rounding);
  check_close(layer_norm(x, {2}, gain, Tensor(), 12), {-1, 1.5, 0, 0, -6 / std::sqrt(21.0), 9 / std::sqrt(21.0)}, f64_rounding);

  // x-hat = [-1.2247, 0, 1.2247] (variance 2/3), a = dy: dx = rstd (a - mean(a) - x-hat mean(a x-hat)) with dy = [1, 0, 0].
  const double r = std::sqrt(1.5);
  const auto run = evaluate([](const auto& v) { return layer_norm(v[0], {3}, Tensor(), Tensor(), 0); }, {tensor<double>({1, 2, 3}, {3})},
                            tensor<double>({1, 0, 0}, {3}));
  check_close(run.gradients[0], {r * (2.0 / 3 - 0.5), -r / 3, r * (0.5 - 1.0 / 3)}, f64_rounding);
}

TEST_CASE("layer_norm: equals the version out of elementary ops", "[ops][norm]") {
  for (const int64_t width : {1, 2, 3, 31, 33, 127, 1000, 4100}) {
    for (const int64_t rows : {1, 2, 3, 31, 33}) {
      INFO(rows << " rows of " << width);
      const bool vanishes = width == 1;  // y = bias whatever x and gain are
      check_same(fused({width}), composed({width}), inputs({rows, width}, {width}), f32_normalised, vanishes);
      if (width > 3) check_same(fused({width}), composed({width}), inputs({rows, width}, {width}, DType::f32, 1e4, 0.1), f32_offset);
      if (width > 3) check_same(fused({width}), composed({width}), inputs({rows, width}, {width}, DType::f64, 1e4, 0.1), 1e-9);
    }
  }
}

TEST_CASE("layer_norm: ranks and several axes", "[ops][norm]") {
  const std::vector<std::pair<Shape, Shape>> cases = {{{9}, {9}},
                                                      {{5, 9}, {9}},
                                                      {{5, 9}, {5, 9}},
                                                      {{2, 3, 8}, {8}},
                                                      {{2, 3, 8}, {3, 8}},
                                                      {{2, 3, 8}, {2, 3, 8}},
                                                      {{2, 2, 3, 9}, {3, 9}},
                                                      {{2, 1, 3, 2, 8}, {8}},
                                                      {{2, 1, 3, 2, 8}, {3, 2, 8}}};
  for (const auto& [shape, normalized] : cases) {
    INFO(shape.str() << " over " << normalized.str());
    check_same(fused(normalized), composed(normalized), inputs(shape, normalized, DType::f64), 1e-11);
    check_gradients(fused(normalized), inputs(shape, normalized, DType::f64));
  }
}

TEST_CASE("layer_norm: gradients with and without gain and bias", "[ops][norm][gradcheck]") {
  for (const int64_t width : {8, 33, 127}) {
    const auto v = inputs({5, width}, {width}, DType::f64, 2, 3);
    const Shape w{width};
    check_gradients(fused(w), v);
    check_gradients([=](const auto& in) { return layer_norm(in[0], w, in[1]); }, {v[0], v[1]});
    check_gradients([=](const auto& in) { return layer_norm(in[0], w, Tensor(), in[1]); }, {v[0], v[2]});
    check_gradients([=](const auto& in) { return layer_norm(in[0], w); }, {v[0]});
  }
  // Rows near zero variance: sqrt(eps) is what limits the slope, and the step must stay far below it.
  check_gradients(fused({8}), inputs({3, 8}, {8}, DType::f64, 1, 1e-3), {.step = 1e-7, .rtol = 1e-5});
}

TEST_CASE("layer_norm: PyTorch's values", "[ops][norm][golden]") {
  const Golden golden("layer_norm");
  int cases = 0;
  for (; golden.has(std::to_string(cases) + ".x"); ++cases) {
    const std::string at = std::to_string(cases) + ".";
    for (const auto& [dtype, tolerance] : {std::pair{DType::f64, 1e-9}, std::pair{DType::f32, f32_offset}}) {
      INFO("case " << cases << " " << to_string(dtype));
      const Tensor gain = golden(at + "gain", dtype);
      const auto run = evaluate(fused(gain.shape(), golden.number(at + "eps")), {golden(at + "x", dtype), gain, golden(at + "bias", dtype)},
                                golden(at + "dy", dtype));
      check_golden(run, golden, at, tolerance, 10);  // rstd is about 10 in the case with deviation 0.1
    }
  }
  CHECK(cases == 5);
}

TEST_CASE("layer_norm: large offset, small spread (A01)", "[ops][norm][pitfall]") {
  constexpr double pitfall_digits = 1e-5;
  check_close(layer_norm(row({40000, 40001, 40002, 40003}), {4}), {-1.3416354, -0.4472118, 0.4472118, 1.3416354}, pitfall_digits);
  const double first[] = {-1.34164, -1.34153, -1.34151, -1.33133};
  const float offsets[] = {0, 100, 1000, 10000};
  for (int i = 0; i < 4; ++i) {
    std::vector<float> x;
    for (int k = 0; k < 16; ++k) x.push_back(offsets[i] + static_cast<float>(k) * 1e-3f);
    const Tensor y = layer_norm(row(x), {16});
    CHECK(std::abs(values(y)[0] - first[i]) < 1.5e-5);  // the sheet has five decimals
    check_close(y, composed_layer_norm(row(x).cast(DType::f64), {16}, Tensor(), Tensor(), 1e-5), pitfall_digits);
    if (i == 3) CHECK(values(y)[15] == Approx(1.33133).epsilon(1e-5));
  }
}

TEST_CASE("layer_norm: biased variance, eps inside the root (A05)", "[ops][norm][pitfall]") {
  check_close(layer_norm(row({1, 0, 0, 0}), {4}), {1.7320046, -0.5773348, -0.5773348, -0.5773348}, f32_rounding);
  check_close(layer_norm(row({1e-3f, -1e-3f}), {2}), {0.301511, -0.301511}, six_digits);
}

TEST_CASE("layer_norm: a bad row does not touch the others (A11)", "[ops][norm][pitfall]") {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const float bad : {inf, -inf, nan}) {
    const Tensor x = tensor<float>({1, 2, bad, 1, 2, 3}, {2, 3});
    const auto run = evaluate([](const auto& v) { return layer_norm(v[0], {3}); }, {x}, tensor<float>({1, 2, 3, 1, 0, 0}, {2, 3}));
    const auto alone = evaluate([](const auto& v) { return layer_norm(v[0], {3}); }, {row({1, 2, 3})}, row({1, 0, 0}));
    const auto y = values(run.y), dx = values(run.gradients[0]);
    CHECK((std::isnan(y[0]) && std::isnan(y[1]) && std::isnan(y[2])));
    CHECK(y[3] == Approx(-1.2247356).epsilon(1e-6));
    for (size_t i = 0; i < 3; ++i) {
      CHECK(y[3 + i] == values(alone.y)[i]);
      CHECK(dx[3 + i] == values(alone.gradients[0])[i]);
    }
  }
}

TEST_CASE("layer_norm: empty tensors (A12)", "[ops][norm][pitfall]") {
  for (const Shape& shape : {Shape{1, 0, 10}, Shape{0, 10}}) {
    const auto run = evaluate(fused({10}), {zeros(shape), normal({10}, 1), normal({10}, 2)}, zeros(shape));
    CHECK(run.y.shape() == shape);
    CHECK(run.gradients[0].shape() == shape);
    check_close(run.gradients[1], zeros({10}), exact);
    check_close(run.gradients[2], zeros({10}), exact);
  }
  CHECK(layer_norm(zeros({0, 0}), {0}).shape() == Shape{0, 0});
}

TEST_CASE("layer_norm: gradients of gain and bias with leading axes (A15)", "[ops][norm][pitfall]") {
  const auto unit = evaluate(fused({3}), inputs({5, 205, 3}, {3}), ones({5, 205, 3}));
  check_close(unit.gradients[2], {1025, 1025, 1025}, exact);
  const auto run =
      evaluate(fused({3}), {tensor<float>({0, 1, 5, 10, 0, 5}, {1, 2, 3}), ones({3}), zeros({3})}, tensor<float>({1, 2, 3, 4, 5, 6}, {1, 2, 3}));
  check_close(run.gradients[2], {5, 7, 9}, exact);
  check_close(run.gradients[1], {3.9732, -7.0495, 4.1662}, 5e-5);
}

TEST_CASE("layer_norm: no lost updates in column sums (A16)", "[ops][norm][pitfall][threads]") {
  const auto in = inputs({8, 1024, 7}, {7});
  const int repeats = device().is_cpu() ? 50 : 2;  // the emulator's time
  for (const int threads : thread_counts({1, 2, 4, 8})) {
    const Threads guard(threads);
    int right = 0;
    for (int repeat = 0; repeat < repeats; ++repeat)
      right += values(evaluate(fused({7}), in, ones({8, 1024, 7})).gradients[2]) == std::vector<double>(7, 8192.0);
    CHECK(right == repeats);
  }
}

TEST_CASE("normalisers: earlier layers, gain and bias get their gradients (A17)", "[ops][norm][pitfall][gradcheck]") {
  // Linear(4 -> 4), the norm, Linear(4 -> 1).
  const std::vector<Tensor> in{normal({6, 4}, 1, DType::f64), normal({4, 4}, 2, DType::f64), normal({4}, 3, DType::f64), normal({4}, 4, DType::f64),
                               normal({1, 4}, 5, DType::f64)};
  const Tensor mean = normal({4}, 6, DType::f64), var = uniform({4}, 7, 0.5, 2, DType::f64);
  const auto around = [](auto norm) { return [=](const std::vector<Tensor>& v) { return linear(norm(linear(v[0], v[1]), v[2], v[3]), v[4]); }; };
  check_gradients(around([](const Tensor& a, const Tensor& gain, const Tensor& bias) { return layer_norm(a, {4}, gain, bias); }), in);
  check_gradients(around([](const Tensor& a, const Tensor& gain, const Tensor& bias) { return batch_norm(a, gain, bias, {}, {}, {}); }), in);
  check_gradients(
      around([](const Tensor& a, const Tensor& gain, const Tensor& bias) { return batch_norm(a, gain, bias, {}, {}, {}, {.mean_only = true}); }), in);
  check_gradients(around([](const Tensor& a, const Tensor& gain, const Tensor& bias) { return rms_norm(a, {4}, gain, bias, {.partial = 0.5}); }), in);
  check_gradients(around([](const Tensor& a, const Tensor& gain, const Tensor& bias) { return group_norm(a, 1, gain, bias); }), in);
  check_gradients(
      around([&](const Tensor& a, const Tensor& gain, const Tensor& bias) { return batch_norm(a, gain, bias, mean, var, {}, {.training = false}); }),
      in);
}

TEST_CASE("layer_norm: of a transposed tensor (A19)", "[ops][norm][pitfall]") {
  const Tensor x = tensor<float>({0, 10, 1, 0, 5, 5}, {3, 2});
  const auto run = evaluate([](const auto& v) { return layer_norm(transpose(v[0]), {3}); }, {x}, tensor<float>({1, 0, 0, 0, 0, 2}, {2, 3}));
  check_close(run.y, {-0.92582, -0.46291, 1.38873, 1.22474, -1.22474, 0}, 1e-5);
  // The same rows as a tensor of their own.
  const auto rows = evaluate([](const auto& v) { return layer_norm(v[0], {3}); }, {tensor<float>({0, 1, 5, 10, 0, 5}, {2, 3})},
                             tensor<float>({1, 0, 0, 0, 0, 2}, {2, 3}));
  CHECK(same_bits(run.y, rows.y));
  check_close(run.gradients[0], transpose(rows.gradients[0]), exact);
  CHECK(norm_of(run.gradients[0]) > 0.1);
}

TEST_CASE("layer_norm: a row of twenty million (A23)", "[ops][norm][pitfall][large]") {
  // One 0, then ones: a sum that stops growing at 2^24 would put the mean at 0.84.
  constexpr int64_t width = 20'000'000;
  Tensor x = ones({1, width});
  slice(flatten(x), 0, 0, 1).fill_(0);
  const Tensor y = layer_norm(x, {width});
  const double p = 1.0 / width, rstd = 1 / std::sqrt(p * (1 - p) + 1e-5);
  CHECK(slice(y, 1, 0, 1).item() == Approx(-(1 - p) * rstd).epsilon(1e-5));
  CHECK(slice(y, 1, width - 1).item() == Approx(p * rstd).margin(1e-5));
}

TEST_CASE("layer_norm: constant rows", "[ops][norm]") {
  for (const float value : {0.0f, 0.1f, -7.3f, 1e4f, 1e-30f}) {
    for (const int64_t width : {2, 3, 31, 1000}) {
      const auto run = evaluate(fused({width}), {full({2, width}, value), normal({width}, 2), normal({width}, 3)}, normal({2, width}, 4));
      const Tensor bias = normal({width}, 3);
      check_close(run.y, expand(bias, {2, width}), exact);
      // x-hat = 0: dx = (a - mean(a)) / sqrt(eps), a = gain dy.
      const Tensor a = (normal({width}, 2) * normal({2, width}, 4)).cast(DType::f64);
      check_close(run.gradients[0], (a - mean(a, {1}, true)) / std::sqrt(1e-5), f32_sum * 10);
      check_close(run.gradients[1], zeros({width}), exact);
    }
  }
}

TEST_CASE("layer_norm: x-hat has mean 0 and deviation 1 and does not see x -> a x + b", "[ops][norm]") {
  const Tensor x = normal({17, 1001}, 9, DType::f64, 3, 2);
  const Tensor y = layer_norm(x, {1001}, Tensor(), Tensor(), 0);
  check_close(mean(y, {1}), std::vector<double>(17, 0.0), f64_rounding);
  check_close(mean(y * y, {1}), std::vector<double>(17, 1.0), f64_rounding);
  check_close(layer_norm(x * 7.5 - 40.0, {1001}, Tensor(), Tensor(), 0), y, 1e-12);
}

TEST_CASE("normalisers: invariances of the paper's Table 1", "[ops][norm][paper]") {
  // Each change of weights W [H, C] or data x [N, C], and whether the normalised x W^T stays (eps = 0).
  const Tensor x = normal({9, 6}, 1, DType::f64), w = normal({8, 6}, 2, DType::f64), shift = normal({6}, 3, DType::f64);
  const auto with_row = [](const Tensor& matrix, int64_t i, double factor) {
    Tensor changed = matrix.clone();
    Tensor row = slice(changed, 0, i, i + 1);
    row.copy_(row * factor);
    return changed;
  };
  struct Change {
    const char* name;
    Tensor x, w;
    bool layer, batch;
  };
  const Change changes[] = {
      {"weight matrix re-scaling", x, w * 2.5, true, true},
      {"weight matrix re-centring", x, w + shift, true, false},
      {"weight vector re-scaling", x, with_row(w, 3, 4), false, true},
      {"data set re-scaling", x * 0.3, w, true, true},
      {"data set re-centring", x + shift, w, false, true},
      {"single case re-scaling", with_row(x, 5, 4), w, true, false},
  };
  const auto layer = [](const Tensor& a) { return layer_norm(a, {8}, Tensor(), Tensor(), 0); };
  const auto batch = [](const Tensor& a) { return batch_norm(a, {}, {}, {}, {}, {}, {.eps = 0}); };
  const Tensor layer_before = layer(linear(x, w)), batch_before = batch(linear(x, w));
  for (const Change& change : changes) {
    INFO(change.name);
    const Tensor a = linear(change.x, change.w);
    CHECK((max_difference(layer(a), layer_before) < 1e-12) == change.layer);
    CHECK((max_difference(batch(a), batch_before) < 1e-12) == change.batch);
    if (!change.layer) CHECK(max_difference(layer(a), layer_before) > 0.01);
    if (!change.batch) CHECK(max_difference(batch(a), batch_before) > 0.01);
  }
}

TEST_CASE("normalisers: the paper's Table 1 for RMS norm and weight norm", "[ops][norm][paper]") {
  const Tensor x = normal({9, 6}, 1, DType::f64), w = normal({8, 6}, 2, DType::f64), shift = normal({6}, 3, DType::f64);
  const auto with_row = [](const Tensor& matrix, int64_t i, double factor) {
    Tensor changed = matrix.clone();
    Tensor row = slice(changed, 0, i, i + 1);
    row.copy_(row * factor);
    return changed;
  };
  const auto rms = [](const Tensor& a, const Tensor& b) { return rms_norm(linear(a, b), {8}, {}, {}, {.partial = 0.5, .eps = 0}); };
  const auto weight = [](const Tensor& a, const Tensor& b) { return linear(a, weight_norm(b, ones({8, 1}, DType::f64))); };
  struct Change {
    const char* name;
    Tensor x, w;
    bool rms, weight;
  };
  const Change changes[] = {
      {"weight matrix re-scaling", x, w * 2.5, true, true},
      {"weight matrix re-centring", x, w + shift, false, false},
      {"weight vector re-scaling", x, with_row(w, 3, 4), false, true},
      {"data set re-scaling", x * 0.3, w, true, false},
      {"data set re-centring", x + shift, w, false, false},
      {"single case re-scaling", with_row(x, 5, 4), w, true, false},
  };
  for (const Change& change : changes) {
    INFO(change.name);
    CHECK((max_difference(rms(change.x, change.w), rms(x, w)) < 1e-12) == change.rms);
    CHECK((max_difference(weight(change.x, change.w), weight(x, w)) < 1e-12) == change.weight);
    if (!change.rms) CHECK(max_difference(rms(change.x, change.w), rms(x, w)) > 0.01);
    if (!change.weight) CHECK(max_difference(weight(change.x, change.w), weight(x, w)) > 0.01);
  }
}

TEST_CASE("layer_norm: without spread and eps the bias, without gradient", "[ops][norm]") {
  const auto run = evaluate(fused({3}, 0), {full({2, 3}, 7), normal({3}, 1), normal({3}, 2)}, normal({2, 3}, 3));
  check_close(run.y, expand(normal({3}, 2), {2, 3}), exact);
  check_close(run.gradients[0], zeros({2, 3}), exact);
}

TEST_CASE("layer_norm: the same bits for every thread count", "[ops][norm][threads]") {
  for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{257, 613}, {4, 1000}, {4099, 33}, {2, 100'003}, {70'001, 3}}) {
    INFO(rows << " rows of " << width);
    check_thread_counts(fused({width}), inputs({rows, width}, {width}));
  }
  check_thread_counts(fused({33, 31}), inputs({129, 33, 31}, {33, 31}, DType::f64));
}

TEST_CASE("layer_norm: what it saves", "[ops][norm]") {
  const int64_t before = autograd::saved_bytes();
  const auto in = inputs({8, 16}, {16});
  Tensor x = in[0];
  const Tensor y = layer_norm(x.set_requires_grad(), {16}, in[1], in[2]);
  CHECK(autograd::saved_bytes() - before == x.nbytes() + in[1].nbytes() + 3 * 8 * 4);
}

TEST_CASE("layer_norm: errors", "[ops][norm][errors]") {
  const Tensor x = zeros({2, 4});
  CHECK_THROWS_WITH(layer_norm(x, {4}, ones({3})), contains("[layer_norm] gain: expected [4], got [3] (x is [2, 4])"));
  CHECK_THROWS_WITH(layer_norm(x, {4}, Tensor(), ones({4, 1})), contains("[layer_norm] bias: expected [4], got [4, 1]"));
  CHECK_THROWS_WITH(layer_norm(x, {4}, ones({4}, DType::f64)), contains("[layer_norm] gain: expected f32 as x, got f64"));
  CHECK_THROWS_WITH(layer_norm(x, {3}), contains("[layer_norm] x: expected a shape that ends in [3], got [2, 4]"));
  CHECK_THROWS_WITH(layer_norm(x, {2}), contains("ends in [2], got [2, 4]"));
  CHECK_THROWS_WITH(layer_norm(x, {1, 2, 4}), contains("ends in [1, 2, 4]"));
  CHECK_THROWS_WITH(layer_norm(x, {}), contains("[layer_norm] normalized_shape: expected at least one axis"));
  CHECK_THROWS_WITH(layer_norm(zeros({3, 0}), {0}), contains("[layer_norm] x: expected at least one element per row, got [3, 0]"));
  CHECK_THROWS_WITH(layer_norm(x, {4}, Tensor(), Tensor(), -1e-5), contains("[layer_norm] eps: expected a number >= 0, got -1e-05"));
  CHECK_THROWS_WITH(layer_norm(zeros({2, 4}, DType::i64), {4}), contains("[layer_norm] expected") && contains("i64"));
}
