// Group and instance norm.
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

Tensor along_channels(const Tensor& v, const Tensor& x) {
  std::vector<int64_t> sizes(static_cast<size_t>(x.rank()), 1);
  sizes[1] = x.size(1);
  return reshape(v, sizes);
}

Tensor composed_group_norm(const Tensor& x, int64_t groups, const Tensor& gain, const Tensor& bias, double eps) {
  const Tensor rows = reshape(x, {x.size(0) * groups, x.numel() / (x.size(0) * groups)});
  const Tensor d = rows - mean(rows, {1}, true);
  return reshape(d / sqrt(mean(d * d, {1}, true) + eps), x.shape()) * along_channels(gain, x) + along_channels(bias, x);
}

Function fused(int64_t groups, double eps = 1e-5) {
  return [=](const std::vector<Tensor>& v) { return group_norm(v[0], groups, v[1], v[2], eps); };
}
Function composed(int64_t groups, double eps = 1e-5) {
  return [=](const std::vector<Tensor>& v) { return composed_group_norm(v[0], groups, v[1], v[2], eps); };
}
Function instances(double eps = 1e-5) {
  return [=](const std::vector<Tensor>& v) { return instance_norm(v[0], v[1], v[2], {}, {}, {}, {.eps = eps}); };
}

std::vector<Tensor> inputs(const Shape& x, DType dtype = DType::f32, double offset = 0, double sd = 1) {
  return {normal(x, 1, dtype, offset, sd), normal({x[1]}, 2, dtype), normal({x[1]}, 3, dtype)};
}

struct Running : RunningBuffers {
  using RunningBuffers::RunningBuffers;
  Tensor operator()(const Tensor& x, InstanceNormOptions options = {}) const { return instance_norm(x, {}, {}, mean, var, count, options); }
};

const std::pair<Shape, int64_t> layouts[] = {{{3, 8}, 2},        {{5, 6}, 1},       {{2, 6, 5}, 3},    {{2, 6, 5}, 6},
                                             {{1, 4, 33}, 2},    {{3, 1, 2, 3}, 1}, {{4, 9, 3, 1}, 3}, {{2, 4, 3, 2, 2}, 2},
                                             {{33, 12, 127}, 4}, {{2, 960, 4}, 32}, {{7, 30, 1, 1}, 5}};

}  // namespace

TEST_CASE("group_norm: worked values", "[ops][norm]") {
  // Two groups of two channels: means 3 and 10, variances 4 and 0 + 1.
  const Tensor x = tensor<double>({1, 5, 9, 11}, {1, 4});
  check_close(group_norm(x, 2, {}, {}, 0), {-1, 1, -1, 1}, f64_rounding);
  const Tensor gain = tensor<double>({2, 3, 4, 5}, {4}), bias = tensor<double>({0, 10, 20, 30}, {4});
  check_close(group_norm(x, 2, gain, bias, 0), {-2, 13, 16, 35}, f64_rounding);
  // One group of two channels with two values each: mean 4, variance 5; gain and bias by channel.
  const Tensor planes = tensor<double>({1, 3, 5, 7}, {1, 2, 2});
  const double r = 1 / std::sqrt(5.0);
  check_close(group_norm(planes, 1, tensor<double>({1, 10}, {2}), tensor<double>({0, 100}, {2}), 0), {-3 * r, -r, 100 + 10 * r, 100 + 30 * r},
              f64_rounding);
  // As many groups as channels: instance norm.
  check_close(group_norm(planes, 2, {}, {}, 0), {-1, 1, -1, 1}, f64_rounding);
}

TEST_CASE("group_norm: equals the version out of elementary ops", "[ops][norm]") {
  for (const auto& [shape, groups] : layouts) {
    INFO(shape.str() << " in " << groups << " groups");
    check_same(fused(groups), composed(groups), inputs(shape), f32_normalised);
    check_same(fused(groups), composed(groups), inputs(shape, DType::f32, 1e4, 0.5), f32_offset);
    check_same(fused(groups, 0.1), composed(groups, 0.1), inputs(shape, DType::f64, -5, 2), 1e-11);
  }
}

TEST_CASE("group_norm and instance_norm: gradients", "[ops][norm][gradcheck]") {
  for (const auto& [shape, groups] :
       std::vector<std::pair<Shape, int64_t>>{{{3, 8}, 2}, {{2, 6, 5}, 3}, {{2, 3, 7}, 3}, {{2, 4, 2, 3}, 1}, {{1, 4, 2, 2, 2}, 2}}) {
    INFO(shape.str() << " in " << groups << " groups");
    const auto v = inputs(shape, DType::f64, 1, 2);
    const int64_t g = groups;
    check_gradients(fused(g), v);
    check_gradients([=](const auto& in) { return group_norm(in[0], g, in[1]); }, {v[0], v[1]});
    check_gradients([=](const auto& in) { return group_norm(in[0], g, {}, in[1]); }, {v[0], v[2]});
    check_gradients([=](const auto& in) { return group_norm(in[0], g); }, {v[0]});
    if (shape.rank() < 3) continue;
    check_gradients(instances(), v);
    check_gradients([](const auto& in) { return instance_norm(in[0]); }, {v[0]});
    const Tensor mean = normal({shape[1]}, 6, DType::f64), var = uniform({shape[1]}, 7, 0.5, 2, DType::f64);
    check_gradients([&](const auto& in) { return instance_norm(in[0], in[1], in[2], mean, var, {}, {.training = false}); }, v);
  }
}

TEST_CASE("instance_norm: is group_norm with a group per channel, in training and evaluation", "[ops][norm]") {
  for (const Shape& shape : {Shape{2, 6, 5}, Shape{3, 1, 2, 3}, Shape{1, 4, 2, 3, 2}}) {
    const auto in = inputs(shape);
    const Tensor dy = normal(shape, 9);
    const auto a = evaluate(instances(), in, dy), b = evaluate(fused(shape[1]), in, dy);
    CHECK(same_bits(a.y, b.y));
    for (size_t i = 0; i < 3; ++i) CHECK(same_bits(a.gradients[i], b.gradients[i]));
    CHECK(norm_of(a.gradients[0]) > 0.1);
    CHECK(same_bits(instance_norm(in[0], in[1], in[2], {}, {}, {}, {.training = false}), a.y));
  }
}

TEST_CASE("group_norm: PyTorch's values", "[ops][norm][golden]") {
  const Golden golden("group_norm");
  int cases = 0;
  for (; golden.has(std::to_string(cases) + ".x"); ++cases) {
    const std::string at = std::to_string(cases) + ".";
    for (const auto& [dtype, tolerance] : {std::pair{DType::f64, 1e-9}, std::pair{DType::f32, f32_offset}}) {
      INFO("case " << cases << " " << to_string(dtype));
      const auto groups = static_cast<int64_t>(golden.number(at + "groups"));
      const auto run = evaluate(fused(groups, golden.number(at + "eps")),
                                {golden(at + "x", dtype), golden(at + "gain", dtype), golden(at + "bias", dtype)}, golden(at + "dy", dtype));
      check_golden(run, golden, at, tolerance, 10);  // rstd is about 10 in the case with deviation 0.1
    }
  }
  CHECK(cases == 5);
}

TEST_CASE("instance_norm: PyTorch's values with running statistics", "[ops][norm][golden]") {
  const Golden golden("instance_norm");
  int cases = 0;
  for (; golden.has(std::to_string(cases) + ".gain"); ++cases) {
    const std::string at = std::to_string(cases) + ".";
    for (const auto& [dtype, tolerance] : {std::pair{DType::f64, 1e-9}, std::pair{DType::f32, f32_offset}}) {
      const Tensor gain = golden(at + "gain", dtype), bias = golden(at + "bias", dtype);
      const Running running(gain.numel(), dtype);
      for (int step = 0; step < 4; ++step) {
        INFO("case " << cases << " step " << step << " " << to_string(dtype));
        const std::string now = at + std::to_string(step) + ".";
        const InstanceNormOptions options{.training = step < 3, .momentum = golden.number(at + "momentum"), .eps = golden.number(at + "eps")};
        const auto fn = [&](const auto& v) { return instance_norm(v[0], v[1], v[2], running.mean, running.var, running.count, options); };
        const auto run = evaluate(fn, {golden(now + "x", dtype), gain, bias}, golden(now + "dy", dtype));
        check_golden(run, golden, now, tolerance);
        check_close(running.mean, golden(now + "running_mean"), tolerance);
        check_close(running.var, golden(now + "running_var"), tolerance);
      }
      CHECK(running.count.item() == 3);
    }
  }
  CHECK(cases == 3);
}

TEST_CASE("instance_norm: one element, wrong rank, evaluation (A13)", "[ops][norm][pitfall][errors]") {
  for (const Shape& shape : {Shape{2, 3, 1}, Shape{1, 3, 1}, Shape{2, 3, 1, 1}})
    CHECK_THROWS_WITH(instance_norm(ones(shape)), contains("[instance_norm] expected more than one value per instance, got x of " + shape.str()));
  CHECK_THROWS_WITH(instance_norm(ones({4, 3})), contains("[instance_norm] x: expected [N, C, L] or [N, C, ...], got [4, 3]"));
  const Tensor x = tensor<float>({1, 3}, {1, 1, 2});
  check_close(instance_norm(x, {}, {}, {}, {}, {}, {.training = false}), {-0.999995, 0.999995}, f32_rounding);
  const Running running(1);
  check_close(running(x, {.training = false}), {0.999995, 2.999985}, f32_rounding);
  CHECK(running.count.item() == 0);
  // With given statistics one element is enough.
  check_close(running(full({2, 1, 1}, 3), {.training = false}), {2.999985, 2.999985}, f32_rounding);
  // In training: mean 2, unbiased variance 2.
  running(x);
  check_close(running.mean, {0.2}, f32_rounding);
  check_close(running.var, {0.9 + 0.2}, f32_rounding);
  CHECK(running.count.item() == 1);
  // The batch's average of both, and a cumulative one.
  const Running cumulative(1);
  cumulative(tensor<float>({1, 3, 0, 0}, {2, 1, 2}), {.cumulative = true});  // means 2, 0; variances 2, 0
  check_close(cumulative.mean, {1}, f32_rounding);
  check_close(cumulative.var, {1}, f32_rounding);
  cumulative(tensor<float>({5, 5, 5, 9}, {2, 1, 2}), {.cumulative = true});  // means 5, 7; variances 0, 8
  check_close(cumulative.mean, {3.5}, f32_rounding);
  check_close(cumulative.var, {2.5}, f32_rounding);
}

TEST_CASE("group_norm and instance_norm: large offsets, bad cases, empty batches (A01, A11, A12)", "[ops][norm][pitfall]") {
  const std::vector<float> offset = {40000, 40001, 40002, 40003, 0, 1, 2, 3};
  const std::vector<double> right = {-1.3416354, -0.4472118, 0.4472118, 1.3416354};
  for (const auto& y : {values(group_norm(tensor(offset, {1, 8}), 2)), values(instance_norm(tensor(offset, {1, 2, 4})))})
    for (size_t i = 0; i < 8; ++i) CHECK(y[i] == Approx(right[i % 4]).epsilon(1e-5));

  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const Tensor clean = normal({2, 4, 3}, 1), dy = normal({2, 4, 3}, 2);
  const auto fn = [](const auto& v) { return group_norm(v[0], 2); };
  const auto before = evaluate(fn, {clean}, dy);
  for (const float bad : {inf, -inf, nan}) {
    Tensor x = clean.clone();
    set_element(x, 7, static_cast<double>(bad));  // case 0, group 1
    const auto run = evaluate(fn, {x}, dy);
    for (size_t i = 0; i < 24; ++i) {
      CHECK(std::isnan(values(run.y)[i]) == (i >= 6 && i < 12));
      if (i < 6 || i >= 12) CHECK((values(run.y)[i] == values(before.y)[i] && values(run.gradients[0])[i] == values(before.gradients[0])[i]));
    }
    // Running statistics do not take a bad batch.
    const Running running(4);
    running(x);
    check_close(running.mean, {0, 0, 0, 0}, exact);
    check_close(running.var, {1, 1, 1, 1}, exact);
    CHECK(running.count.item() == 0);
  }

  for (const Shape& shape : {Shape{0, 6, 5}, Shape{2, 6, 0}}) {
    const Running running(6);
    for (const Function& f :
         {fused(3), instances(), Function([&](const auto& v) { return instance_norm(v[0], v[1], v[2], running.mean, running.var); })}) {
      const auto run = evaluate(f, {zeros(shape), normal({6}, 1), normal({6}, 2)}, zeros(shape));
      CHECK(run.y.shape() == shape);
      check_close(run.gradients[1], zeros({6}), exact);
      check_close(run.gradients[2], zeros({6}), exact);
    }
    check_close(running.var, ones({6}), exact);
  }
  CHECK(group_norm(zeros({3, 0, 4}), 2).shape() == Shape{3, 0, 4});
  CHECK(instance_norm(zeros({3, 0, 4})).shape() == Shape{3, 0, 4});
}

TEST_CASE("group_norm: constant groups give the bias; sums over cases and space lose nothing (A15, A16)", "[ops][norm][pitfall][threads]") {
  for (const float value : {0.0f, 0.1f, -7.3f, 1e4f}) {
    const auto run = evaluate(fused(2), {full({3, 4, 5}, value), normal({4}, 2), normal({4}, 3)}, normal({3, 4, 5}, 4));
    check_close(run.y, expand(reshape(normal({4}, 3), Shape{1, 4, 1}), {3, 4, 5}), exact);
    check_close(run.gradients[1], zeros({4}), exact);
    CHECK(norm_of(run.gradients[0]) > 10);  // 1/sqrt(eps) times the centred gradient
  }
  const auto in = inputs({64, 8, 128});
  for (const int threads : thread_counts({1, 2, 4, 8})) {
    const Threads guard(threads);
    for (int repeat = 0; repeat < 10; ++repeat)
      REQUIRE(values(evaluate(fused(4), in, ones({64, 8, 128})).gradients[2]) == std::vector<double>(8, 8192.0));
  }
}

TEST_CASE("group_norm and instance_norm: the same bits for every thread count; what they save", "[ops][norm][threads]") {
  for (const auto& [shape, groups] :
       std::vector<std::pair<Shape, int64_t>>{{{257, 64}, 8}, {{9, 6, 1003}, 3}, {{128, 64, 17}, 32}, {{2, 2, 100'003}, 2}}) {
    INFO(shape.str());
    check_thread_counts(fused(groups), inputs(shape));
    if (shape.rank() < 3) continue;
    const auto s = shape;
    check_thread_counts(
        [=](const auto& v) {
          const Running running(s[1]);
          running(v[0], {.momentum = 1});
          return instance_norm(v[0], v[1], v[2], running.mean, running.var, {}, {.training = false});
        },
        inputs(shape));
  }
  const int64_t before = autograd::saved_bytes();
  const auto in = inputs({8, 16, 3});
  Tensor x = in[0];
  const Tensor y = group_norm(x.set_requires_grad(), 4, in[1], in[2]);
  CHECK(autograd::saved_bytes() - before == x.nbytes() + (16 + 3 * 32) * 4);
}

TEST_CASE("group_norm and instance_norm: of a transposed tensor (A19)", "[ops][norm][pitfall]") {
  const Tensor x = normal({3, 8}, 1);
  const auto through = evaluate([](const auto& v) { return group_norm(transpose(v[0]), 1); }, {x}, normal({8, 3}, 2));
  const auto direct = evaluate([](const auto& v) { return group_norm(v[0], 1); }, {transpose(x)}, normal({8, 3}, 2));
  CHECK(same_bits(through.y, direct.y));
  check_close(through.gradients[0], transpose(direct.gradients[0]), exact);
  CHECK(norm_of(through.gradients[0]) > 0.1);
}

TEST_CASE("group_norm and instance_norm: errors", "[ops][norm][errors]") {
  const Tensor x = zeros({2, 4, 3}), four = ones({4});
  CHECK_THROWS_WITH(group_norm(x, 3), contains("[group_norm] groups: expected a number that divides the 4 channels, got 3 (x is [2, 4, 3])"));
  CHECK_THROWS_WITH(group_norm(x, 0), contains("got 0"));
  CHECK_THROWS_WITH(group_norm(zeros({4}), 2), contains("[group_norm] x: expected [N, C] or [N, C, ...], got [4]"));
  CHECK_THROWS_WITH(group_norm(zeros({2, 4}), 4), contains("[group_norm] expected more than one value per group, got x of [2, 4] in 4 groups"));
  CHECK_THROWS_WITH(group_norm(x, 2, ones({3})), contains("[group_norm] gain: expected [4], got [3] (x is [2, 4, 3])"));
  CHECK_THROWS_WITH(group_norm(x, 2, {}, ones({4}, DType::f64)), contains("[group_norm] bias: expected f32 as x, got f64"));
  CHECK_THROWS_WITH(group_norm(x, 2, {}, {}, -1), contains("[group_norm] eps: expected a number >= 0, got -1"));
  CHECK_THROWS_WITH(group_norm(zeros({2, 4}, DType::i64), 2), contains("[group_norm] expected") && contains("i64"));
  CHECK_THROWS_WITH(instance_norm(x, {}, {}, four), contains("[instance_norm] running_var: expected running_mean and running_var both or neither"));
  CHECK_THROWS_WITH(instance_norm(x, {}, {}, four, ones({3})), contains("[instance_norm] running_var: expected [4], got [3]"));
  CHECK_THROWS_WITH(instance_norm(x, {}, {}, four, four, {}, {.momentum = 2}),
                    contains("[instance_norm] momentum: expected a number in [0, 1], got 2"));
  CHECK_THROWS_WITH(instance_norm(x, {}, {}, four, four, {}, {.cumulative = true}), contains("[instance_norm] batches_tracked"));
}
