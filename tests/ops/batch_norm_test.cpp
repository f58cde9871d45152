#include <lamina/autograd/graph.h>
#include <lamina/ops/elementwise.h>
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
/// x - mean is exact, but sums of gradients meet it at the size of 1/std.
constexpr double f32_offset = 1e-4;

/// [C] along axis 1 of a tensor like x.
Tensor along_channels(const Tensor& v, const Tensor& x) {
  std::vector<int64_t> sizes(static_cast<size_t>(x.rank()), 1);
  sizes[1] = x.size(1);
  return reshape(v, sizes);
}

Axes other_axes(const Tensor& x) {
  Axes axes{0};
  for (int i = 2; i < x.rank(); ++i) axes.push_back(i);
  return axes;
}

/// Step by step through the graph: mean, deviations, variance, root, quotient.
Tensor composed_batch_norm(const Tensor& x, const Tensor& gain, const Tensor& bias, const BatchNormOptions& options) {
  const Axes axes = other_axes(x);
  const Tensor d = x - mean(x, axes, true);
  if (options.mean_only) return d * along_channels(gain, x) + along_channels(bias, x);
  const double m = static_cast<double>(x.numel() / x.size(1));
  const Tensor var = sum(d * d, axes, true) / (options.unbiased ? m - 1 : m);
  return d / sqrt(var + options.eps) * along_channels(gain, x) + along_channels(bias, x);
}

Function fused(BatchNormOptions options = {}) {
  return [=](const std::vector<Tensor>& v) { return batch_norm(v[0], v[1], v[2], {}, {}, {}, options); };
}
Function composed(BatchNormOptions options = {}) {
  return [=](const std::vector<Tensor>& v) { return composed_batch_norm(v[0], v[1], v[2], options); };
}

std::vector<Tensor> inputs(const Shape& x, DType dtype = DType::f32, double offset = 0, double sd = 1) {
  return {normal(x, 1, dtype, offset, sd), normal({x[1]}, 2, dtype), normal({x[1]}, 3, dtype)};
}

struct Running : RunningBuffers {
  using RunningBuffers::RunningBuffers;
  Tensor operator()(const Tensor& x, BatchNormOptions options = {}) const { return batch_norm(x, {}, {}, mean, var, count, options); }
};

Tensor column(const std::vector<float>& v) { return tensor(v, {static_cast<int64_t>(v.size()), 1}); }

}  // namespace

TEST_CASE("batch_norm: equals the version out of elementary ops", "[ops][norm]") {
  for (const int64_t channels : {1, 2, 3, 31, 33, 127, 1000, 4100}) {
    for (const int64_t batch : {3, 4, 31, 33}) {
      INFO(batch << " of " << channels << " channels");
      const BatchNormOptions options{.unbiased = batch == 4};
      check_same(fused(options), composed(options), inputs({batch, channels}), f32_normalised);
      check_same(fused(options), composed(options), inputs({batch, channels}, DType::f32, 1e4, 0.1), f32_offset);
      if (batch > 3) check_same(fused(options), composed(options), inputs({batch, channels}, DType::f64, 1e4, 0.1), 1e-9);
    }
  }
  for (const Shape& shape : {Shape{2, 3, 5}, Shape{1, 4, 33}, Shape{3, 1, 2, 3}, Shape{4, 7, 3, 1, 2}, Shape{33, 3, 127}, Shape{2, 1000, 4}}) {
    INFO(shape.str());
    check_same(fused(), composed(), inputs(shape), f32_normalised);
    check_same(fused({.unbiased = true, .eps = 0.1}), composed({.unbiased = true, .eps = 0.1}), inputs(shape, DType::f64, -5, 2), 1e-11);
    check_same(fused({.mean_only = true}), composed({.mean_only = true}), inputs(shape, DType::f32, 100), f32_normalised);
    check_same(fused({.mean_only = true}), composed({.mean_only = true}), inputs(shape, DType::f64, -5, 2), 1e-11);
  }
}

TEST_CASE("batch_norm: equals the chain rule of Ioffe & Szegedy, section 3, written out", "[ops][norm]") {
  const auto in = inputs({7, 5}, DType::f64, 1, 2);
  const Tensor dy = normal({7, 5}, 4, DType::f64);
  const auto run = evaluate(fused(), in, dy);
  const double m = 7, eps = 1e-5;
  const auto x = values(in[0]), gain = values(in[1]), g = values(dy);
  std::vector<double> dx(35), dgain(5), dbias(5);
  for (size_t c = 0; c < 5; ++c) {
    double mu = 0, var = 0, dvar = 0, dmu = 0, deviations = 0;
    for (size_t i = c; i < 35; i += 5) mu += x[i] / m;
    for (size_t i = c; i < 35; i += 5) var += (x[i] - mu) * (x[i] - mu) / m;
    const double root = std::sqrt(var + eps);
    for (size_t i = c; i < 35; i += 5) {
      const double dxhat = g[i] * gain[c];
      dvar += dxhat * (x[i] - mu) * -0.5 / (root * root * root);
      dmu -= dxhat / root;
      deviations += x[i] - mu;
      dgain[c] += g[i] * (x[i] - mu) / root;
      dbias[c] += g[i];
    }
    dmu += dvar * -2 * deviations / m;
    for (size_t i = c; i < 35; i += 5) dx[i] = g[i] * gain[c] / root + dvar * 2 * (x[i] - mu) / m + dmu / m;
  }
  check_close(run.gradients[0], dx, 1e-12);
  check_close(run.gradients[1], dgain, 1e-12);
  check_close(run.gradients[2], dbias, 1e-12);
}

TEST_CASE("batch_norm: gradients", "[ops][norm][gradcheck]") {
  for (const Shape& shape : {Shape{8, 3}, Shape{9, 1}, Shape{2, 3, 5}, Shape{1, 2, 9}, Shape{3, 2, 2, 2}, Shape{2, 3, 2, 1, 3}}) {
    INFO(shape.str());
    const auto v = inputs(shape, DType::f64, 1, 2);
    check_gradients(fused(), v);
    check_gradients(fused({.unbiased = true}), v);
    check_gradients(fused({.mean_only = true}), v);
    check_gradients([](const auto& in) { return batch_norm(in[0], {}, in[1], {}, {}, {}, {.mean_only = true}); }, {v[0], v[2]});
    const Tensor mean = normal({shape[1]}, 6, DType::f64), var = uniform({shape[1]}, 7, 0.5, 2, DType::f64);
    check_gradients([&](const auto& in) { return batch_norm(in[0], in[1], in[2], mean, var, {}, {.training = false}); }, v);
    check_gradients([&](const auto& in) { return batch_norm(in[0], {}, {}, mean, var, {}, {.training = false}); }, {v[0]});
    check_gradients([](const auto& in) { return batch_norm(in[0], in[1], {}, {}, {}, {}); }, {v[0], v[1]});
    check_gradients([](const auto& in) { return batch_norm(in[0], {}, in[1], {}, {}, {}); }, {v[0], v[2]});
  }
}

TEST_CASE("batch_norm: mean only", "[ops][norm]") {
  // Means 3 and 10: nothing is divided, whatever eps is.
  const Tensor x = tensor<double>({1, 10, 5, 12, 3, 8}, {3, 2}), bias = tensor<double>({100, 0}, {2});
  const Tensor mean = zeros({2}, DType::f64), count = zeros({}, DType::i64);
  const auto fn = [&](bool training) {
    return [&, training](const auto& v) { return batch_norm(v[0], {}, v[1], mean, {}, count, {.training = training, .mean_only = true}); };
  };
  const Tensor dy = tensor<double>({1, 2, 3, 4, 5, 9}, {3, 2});
  const auto run = evaluate(fn(true), {x, bias}, dy);
  check_close(run.y, {98, 0, 102, 2, 100, -2}, f64_rounding);
  check_close(run.gradients[0], {-2, -3, 0, -1, 2, 4}, f64_rounding);  // dy minus its means 3 and 5
  check_close(run.gradients[1], {9, 15}, f64_rounding);
  check_close(mean, {0.3, 1}, f64_rounding);
  CHECK(count.item() == 1);
  // Evaluation subtracts the running mean, a constant.
  const auto eval = evaluate(fn(false), {x, bias}, dy);
  check_close(eval.y, {100.7, 9, 104.7, 11, 102.7, 7}, f64_rounding);
  check_close(eval.gradients[0], dy, f64_rounding);
  CHECK(count.item() == 1);
  // A large offset costs nothing but what the inputs' rounding costs.
  const Tensor offset = normal({33, 5}, 1, DType::f32, 1e4, 0.1);
  check_close(batch_norm(offset, {}, {}, {}, {}, {}, {.mean_only = true}),
              batch_norm(offset.cast(DType::f64), {}, {}, {}, {}, {}, {.mean_only = true}), f32_rounding);
  CHECK_THROWS_WITH(batch_norm(x, {}, {}, mean, mean, {}, {.mean_only = true}), contains("[batch_norm] running_var: expected none"));
  CHECK_THROWS_WITH(batch_norm(ones({1, 2}), {}, {}, {}, {}, {}, {.mean_only = true}), contains("more than one value per channel"));
  for (const Shape& shape : {Shape{0, 2}, Shape{3, 2, 0}}) CHECK(batch_norm(zeros(shape), {}, {}, {}, {}, {}, {.mean_only = true}).shape() == shape);
  for (const Shape& shape : {Shape{257, 613}, Shape{9, 7, 1003}, Shape{2, 1, 100'003}})
    check_thread_counts(fused({.mean_only = true}), inputs(shape));
}

TEST_CASE("batch_norm: variances beyond the dtype", "[ops][norm]") {
  // In f32 the squares of these overflow (or vanish, with eps 0); the result is that of the ordinary channel all the same.
  const Tensor ordinary = normal({33, 3}, 1), dy = normal({33, 3}, 2);
  const auto in_units_of = [&](float unit) {
    Tensor x = ordinary.clone();
    for (int64_t i = 1; i < 99; i += 3) set_element(x, i, element(x, i) * static_cast<double>(unit));
    return x;
  };
  const auto right = evaluate(fused({.eps = 0}), {ordinary, normal({3}, 3), normal({3}, 4)}, dy);
  for (const float unit : {1e20f, 1e30f, 1e-25f, 1e-30f}) {
    INFO(unit);
    const auto run = evaluate(fused({.eps = 0}), {in_units_of(unit), normal({3}, 3), normal({3}, 4)}, dy);
    check_close(run.y, right.y, f32_normalised);
    check_close(run.gradients[1], right.gradients[1], f32_normalised * 10);  // sums of 33
    for (size_t i = 1; i < 99; i += 3) CHECK(values(run.gradients[0])[i] * unit == Approx(values(right.gradients[0])[i]).margin(1e-5));
  }
  // A variance that f32 cannot hold does not get into the running one; one that it can does.
  const Running running(3);
  running(in_units_of(1e20f));
  check_close(running.var, {1, 1, 1}, exact);
  CHECK(running.count.item() == 0);
  running(in_units_of(1e15f), {.momentum = 1});
  CHECK(values(running.var)[1] == Approx(1e30).epsilon(0.6));
  CHECK(running.count.item() == 1);
}

TEST_CASE("batch_norm: PyTorch's values", "[ops][norm][golden]") {
  const Golden golden("batch_norm");
  int cases = 0;
  for (; golden.has(std::to_string(cases) + ".gain"); ++cases) {
    const std::string at = std::to_string(cases) + ".";
    for (const auto& [dtype, tolerance] : {std::pair{DType::f64, 1e-9}, std::pair{DType::f32, f32_offset}}) {
      const Tensor gain = golden(at + "gain", dtype), bias = golden(at + "bias", dtype);
      const Running running(gain.numel(), dtype);
      for (int step = 0; step < 4; ++step) {
        INFO("case " << cases << " step " << step << " " << to_string(dtype));
        const std::string now = at + std::to_string(step) + ".";
        BatchNormOptions options{.training = step < 3, .eps = golden.number(at + "eps")};
        if (const double momentum = golden.number(at + "momentum"); momentum < 0)
          options.cumulative = true;
        else
          options.momentum = momentum;
        const auto fn = [&](const auto& v) { return batch_norm(v[0], v[1], v[2], running.mean, running.var, running.count, options); };
        const auto run = evaluate(fn, {golden(now + "x", dtype), gain, bias}, golden(now + "dy", dtype));
        check_golden(run, golden, now, tolerance);
        check_close(running.mean, golden(now + "running_mean"), tolerance);
        check_close(running.var, golden(now + "running_var"), tolerance);
      }
      CHECK(running.count.item() == 3);
    }
  }
  CHECK(cases == 4);
}

TEST_CASE("batch_norm: large offset, small spread (A03)", "[ops][norm][pitfall]") {
  const Running running(1);
  check_close(running(column({4096, 4096.25f, 4096.5f, 4096.75f})), {-1.341555, -0.447185, 0.447185, 1.341555}, six_digits);
  check_close(running.var, {0.9104167}, f32_rounding);
}

TEST_CASE("batch_norm: one value per channel (A08)", "[ops][norm][pitfall][errors]") {
  const Running running(7);
  CHECK_THROWS_WITH(running(zeros({1, 7})), contains("[batch_norm] expected more than one value per channel in training, got x of [1, 7]"));
  CHECK_THROWS_WITH(batch_norm(zeros({1, 7, 1}), {}, {}, {}, {}, {}, {.training = false}),
                    contains("one value per channel") && contains("[1, 7, 1]"));
  check_close(running.var, ones({7}), exact);
  CHECK(running.count.item() == 0);
  CHECK(running(ones({1, 7}), {.training = false}).shape() == Shape{1, 7});
  const Tensor x = tensor<float>({1, 3, 5, 9}, {1, 2, 2});
  check_close(batch_norm(x, {}, {}, {}, {}, {}), {-0.999995, 0.999995, -0.9999988, 0.9999987}, f32_rounding);
}

TEST_CASE("batch_norm: running statistics (A09)", "[ops][norm][pitfall]") {
  std::vector<float> v;
  for (int n = 1; n <= 4; ++n)
    for (int c = 0; c < 3; ++c)
      for (int i = 0; i < 4; ++i) v.push_back(static_cast<float>(n + 4 * c + i));
  const Tensor x = tensor(v, {4, 3, 4});
  const Running running(3);
  const auto y = values(running(x));
  const double first[] = {-1.897363, -1.264909, -0.632454, 0};
  for (size_t i = 0; i < 4; ++i) CHECK(y[i] == Approx(first[i]).margin(2e-6));
  check_close(running.mean, {0.4, 0.8, 1.2}, f32_rounding);
  check_close(running.var, {1.1666667, 1.1666667, 1.1666667}, f32_rounding);
  CHECK(running.count.item() == 1);

  // Evaluation uses them as they are (no unbiased factor) and leaves them alone.
  const Tensor eval = running(x, {.training = false, .unbiased = true});
  CHECK(values(eval)[0] == Approx((1 - 0.4) / std::sqrt(1.1666667 + 1e-5)).epsilon(1e-6));
  check_close(running.mean, {0.4, 0.8, 1.2}, f32_rounding);
  CHECK(running.count.item() == 1);

  // Normalising with the unbiased variance: the same running statistics, the output smaller by sqrt(15/16).
  const Running unbiased(3);
  const auto z = values(unbiased(x, {.unbiased = true, .eps = 0}));
  CHECK(z[0] == Approx(-3 / std::sqrt(2.6666667)).epsilon(1e-6));
  check_close(unbiased.var, running.var, f32_rounding);

  // A cumulative average gives every batch the same weight.
  const Running cumulative(3);
  for (const double shift : {0.0, 5.0, 10.0}) cumulative(x + shift, {.cumulative = true});
  check_close(cumulative.mean, {9, 13, 17}, f32_rounding);
  check_close(cumulative.var, {2.6666667, 2.6666667, 2.6666667}, f32_rounding);

  // Momentum 1 keeps the last batch, 0 the start.
  const Running last(3), start(3);
  last(x, {.momentum = 1});
  start(x, {.momentum = 0});
  check_close(last.mean, {4, 8, 12}, f32_rounding);
  check_close(start.var, {1, 1, 1}, exact);
}

TEST_CASE("batch_norm: a batch that is not finite leaves the running statistics alone (A11)", "[ops][norm][pitfall]") {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    const Running running(2);
    const Tensor y = running(tensor<float>({1, 1, bad, 3}, {2, 2}));
    CHECK((std::isnan(values(y)[0]) && std::isnan(values(y)[2])));        // the bad channel shows
    CHECK((std::isfinite(values(y)[1]) && std::isfinite(values(y)[3])));  // the other is as without it
    check_close(running.mean, {0, 0}, exact);
    check_close(running.var, {1, 1}, exact);
    CHECK(running.count.item() == 0);
    running(tensor<float>({1, 1, 3, 3}, {2, 2}));
    check_close(running.mean, {0.2, 0.2}, f32_rounding);
    check_close(running.var, {1.1, 1.1}, f32_rounding);
    CHECK(running.count.item() == 1);
  }
}

TEST_CASE("batch_norm: an empty batch (A12)", "[ops][norm][pitfall]") {
  for (const bool training : {true, false}) {
    for (const Shape& shape : {Shape{0, 5}, Shape{0, 5, 3}, Shape{2, 5, 0}}) {
      const Running running(5);
      const auto fn = [&](const auto& v) { return batch_norm(v[0], v[1], v[2], running.mean, running.var, running.count, {.training = training}); };
      const auto run = evaluate(fn, {zeros(shape), normal({5}, 1), normal({5}, 2)}, zeros(shape));
      CHECK(run.y.shape() == shape);
      CHECK(run.gradients[0].shape() == shape);
      check_close(run.gradients[1], zeros({5}), exact);
      check_close(run.gradients[2], zeros({5}), exact);
      check_close(running.mean, zeros({5}), exact);
      check_close(running.var, ones({5}), exact);
      CHECK(running.count.item() == 0);
    }
  }
  CHECK(batch_norm(zeros({3, 0}), {}, {}, {}, {}, {}).shape() == Shape{3, 0});
}

TEST_CASE("batch_norm: gradients of gain and bias (A15, A16)", "[ops][norm][pitfall][threads]") {
  const auto in = inputs({64, 7, 128});
  for (const int threads : thread_counts({1, 2, 4, 8})) {
    const Threads guard(threads);
    int right = 0;
    for (int repeat = 0; repeat < 20; ++repeat)
      right += values(evaluate(fused(), in, ones({64, 7, 128})).gradients[2]) == std::vector<double>(7, 8192.0);
    CHECK(right == 20);
  }
}

TEST_CASE("batch_norm: of a transposed tensor (A19)", "[ops][norm][pitfall]") {
  const Tensor x = normal({3, 8}, 1);
  const auto through = evaluate([](const auto& v) { return batch_norm(transpose(v[0]), {}, {}, {}, {}, {}); }, {x}, normal({8, 3}, 2));
  const auto direct = evaluate([](const auto& v) { return batch_norm(v[0], {}, {}, {}, {}, {}); }, {transpose(x)}, normal({8, 3}, 2));
  CHECK(same_bits(through.y, direct.y));
  check_close(through.gradients[0], transpose(direct.gradients[0]), exact);
  CHECK(norm_of(through.gradients[0]) > 0.1);
}

TEST_CASE("batch_norm: twenty million values per channel (A23)", "[ops][norm][pitfall][large]") {
  constexpr int64_t count = 20'000'000;
  Tensor x = ones({20, 1, count / 20});
  slice(flatten(x), 0, 0, 1).fill_(0);
  const Running running(1);
  running(x, {.momentum = 1});
  check_close(running.mean, {1}, f32_rounding);
  CHECK(running.var.item() == Approx(1.0 / count).epsilon(1e-4));
}

TEST_CASE("batch_norm: constant channels", "[ops][norm]") {
  for (const float value : {0.0f, 0.1f, 1e4f}) {
    const auto run = evaluate(fused(), {full({4, 3, 5}, value), normal({3}, 2), normal({3}, 3)}, normal({4, 3, 5}, 4));
    check_close(run.y, expand(reshape(normal({3}, 3), Shape{1, 3, 1}), {4, 3, 5}), exact);
    check_close(run.gradients[1], zeros({3}), exact);
    const Tensor a = (reshape(normal({3}, 2), Shape{1, 3, 1}) * normal({4, 3, 5}, 4)).cast(DType::f64);
    check_close(run.gradients[0], (a - mean(a, {0, 2}, true)) / std::sqrt(1e-5), f32_sum * 10);
  }
}

TEST_CASE("batch_norm: statistics are updated outside the graph", "[ops][norm]") {
  const Running running(3);
  const Tensor x = normal({8, 3}, 1).set_requires_grad();
  {
    const NoGrad no_grad;
    running(x);
  }
  CHECK(running.count.item() == 1);
  CHECK(!running.mean.requires_grad());
  // A graph made in evaluation survives a later step in training.
  const Tensor eval = running(x, {.training = false});
  running(x * 2.0);
  CHECK_NOTHROW(eval.backward(normal({8, 3}, 2)));
  CHECK(norm_of(x.grad()) > 0.1);

  // Without running statistics evaluation normalises with the batch, and there is nothing to update.
  check_close(batch_norm(x, {}, {}, {}, {}, {}, {.training = false}), batch_norm(x, {}, {}, {}, {}, {}), exact);
}

TEST_CASE("batch_norm: the same bits for every thread count", "[ops][norm][threads]") {
  for (const Shape& shape : {Shape{257, 613}, Shape{4, 1000}, Shape{70'001, 3}, Shape{9, 7, 1003}, Shape{128, 65, 17}, Shape{2, 1, 100'003}}) {
    INFO(shape.str());
    check_thread_counts(fused(), inputs(shape));
    check_thread_counts(
        [&](const auto& v) {
          const Running running(shape[1]);
          running(v[0], {.momentum = 1});
          return batch_norm(v[0], v[1], v[2], running.mean, running.var, {}, {.training = false});
        },
        inputs(shape));
  }
}

TEST_CASE("batch_norm: what it saves", "[ops][norm]") {
  const int64_t before = autograd::saved_bytes();
  const auto in = inputs({8, 16});
  Tensor x = in[0];
  const Tensor y = batch_norm(x.set_requires_grad(), in[1], in[2], {}, {}, {});
  CHECK(autograd::saved_bytes() - before == x.nbytes() + 3 * 16 * 4);
}

TEST_CASE("batch_norm: errors", "[ops][norm][errors]") {
  const Tensor x = zeros({2, 4}), c = ones({4});
  CHECK_THROWS_WITH(batch_norm(zeros({4}), {}, {}, {}, {}, {}), contains("[batch_norm] x: expected [N, C] or [N, C, ...], got [4]"));
  CHECK_THROWS_WITH(batch_norm(x, ones({2}), {}, {}, {}, {}), contains("[batch_norm] gain: expected [4], got [2] (x is [2, 4])"));
  CHECK_THROWS_WITH(batch_norm(x, {}, ones({4}, DType::f64), {}, {}, {}), contains("[batch_norm] bias: expected f32 as x, got f64"));
  CHECK_THROWS_WITH(batch_norm(x, {}, {}, ones({1, 4}), c, {}), contains("running_mean: expected [4], got [1, 4]"));
  CHECK_THROWS_WITH(batch_norm(x, {}, {}, c, {}, {}), contains("[batch_norm] running_var: expected running_mean and running_var both or neither"));
  CHECK_THROWS_WITH(batch_norm(x, {}, {}, c, c, zeros({})), contains("batches_tracked: expected one i64, got f32 []"));
  CHECK_THROWS_WITH(batch_norm(x, {}, {}, c, c, {}, {.cumulative = true}), contains("[batch_norm] batches_tracked"));
  CHECK_THROWS_WITH(batch_norm(x, {}, {}, {}, {}, {}, {.momentum = 1.5}), contains("[batch_norm] momentum: expected a number in [0, 1], got 1.5"));
  CHECK_THROWS_WITH(batch_norm(x, {}, {}, {}, {}, {}, {.eps = -1}), contains("[batch_norm] eps: expected a number >= 0, got -1"));
  CHECK_THROWS_WITH(batch_norm(zeros({2, 4}, DType::u8), {}, {}, {}, {}, {}), contains("[batch_norm] expected") && contains("u8"));
}
