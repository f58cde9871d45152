// Weight norm.
#include <lamina/autograd/graph.h>
#include <lamina/ops/elementwise.h>
#include <lamina/ops/matmul.h>
#include <lamina/ops/norm.h>
#include <lamina/ops/reduce.h>
#include <lamina/ops/shape_ops.h>

#include <limits>

#include "support/evaluate.h"
#include "support/golden.h"

using namespace lamina;
using namespace lamina::test;

namespace {

/// f32 rounding of v / ||v|| times g, over the norm in gradients (checks are relative to the largest element).
constexpr double f32_normalised = 2e-5;

Shape norms_of(Shape shape) {
  for (int i = 1; i < shape.rank(); ++i) shape = shape.with(i, 1);
  return shape;
}

Tensor composed_weight_norm(const Tensor& v, const Tensor& g) {
  Axes axes;
  for (int i = 1; i < v.rank(); ++i) axes.push_back(i);
  return v * (g / (axes.empty() ? abs(v) : norm(v, axes, true)));
}

Tensor fused(const std::vector<Tensor>& in) { return weight_norm(in[0], in[1]); }
Tensor composed(const std::vector<Tensor>& in) { return composed_weight_norm(in[0], in[1]); }

std::vector<Tensor> inputs(const Shape& v, DType dtype = DType::f32, double sd = 1) {
  return {normal(v, 1, dtype, 0.3 * sd, sd), normal(norms_of(v), 2, dtype)};
}

}  // namespace

TEST_CASE("weight_norm: by rows; wrapping a weight leaves the layer as it is (A21)", "[ops][norm][pitfall]") {
  const Tensor v = tensor<float>({1, 2, 3, 4}, {2, 2});
  check_close(weight_norm(v, tensor<float>({5, 6}, {2, 1})), {2.236068, 4.472136, 3.6, 4.8}, six_digits);
  const Tensor g = norm(v, {1}, true);
  check_close(g, {2.236068, 5}, six_digits);
  check_close(linear(ones({1, 2}), weight_norm(v, g)), {3, 7}, f32_rounding);
}

TEST_CASE("weight_norm: worked gradients", "[ops][norm]") {
  // v = [3, 4], ||v|| = 5, g = 10: w = [6, 8]. dw = [1, 2]: dg = dw v / 5 = 11/5; dv = g/5 dw - g dg/25 v = 2 [1, 2] - 22/25 [3, 4].
  const auto run = evaluate(fused, {tensor<double>({3, 4}, {1, 2}), tensor<double>({10}, {1, 1})}, tensor<double>({1, 2}, {1, 2}));
  check_close(run.y, {6, 8}, f64_rounding);
  check_close(run.gradients[1], {2.2}, f64_rounding);
  check_close(run.gradients[0], {2 - 2.64, 4 - 3.52}, f64_rounding);
}

TEST_CASE("weight_norm: equals the version out of elementary ops", "[ops][norm]") {
  for (const Shape& shape :
       {Shape{1, 2}, Shape{5, 2}, Shape{3, 31}, Shape{33, 127}, Shape{127, 1000}, Shape{4, 3, 5}, Shape{7, 3, 3, 3}, Shape{2, 4100}}) {
    INFO(shape.str());
    check_same(fused, composed, inputs(shape), f32_normalised);
    check_same(fused, composed, inputs(shape, DType::f32, 100), f32_normalised);
    check_same(fused, composed, inputs(shape, DType::f64), 1e-11);
  }
  // One input: w = g sign(v), which does not move with v.
  for (const Shape& shape : {Shape{5, 1}, Shape{5}, Shape{1, 1, 1}}) check_same(fused, composed, inputs(shape, DType::f64), 1e-11, true);
}

TEST_CASE("weight_norm: gradients", "[ops][norm][gradcheck]") {
  for (const Shape& shape : {Shape{3, 4}, Shape{1, 9}, Shape{5, 2, 3}, Shape{2, 3, 2, 2}}) {
    INFO(shape.str());
    check_gradients(fused, inputs(shape, DType::f64));
  }
  // Through a layer, as it is used.
  check_gradients([](const auto& in) { return linear(in[2], weight_norm(in[0], in[1])); },
                  {normal({3, 4}, 1, DType::f64), normal({3, 1}, 2, DType::f64), normal({5, 4}, 3, DType::f64)});
}

TEST_CASE("weight_norm: PyTorch's values", "[ops][norm][golden]") {
  const Golden golden("weight_norm");
  int cases = 0;
  for (; golden.has(std::to_string(cases) + ".v"); ++cases) {
    const std::string at = std::to_string(cases) + ".";
    for (const auto& [dtype, tolerance] : {std::pair{DType::f64, 1e-11}, std::pair{DType::f32, f32_normalised}}) {
      INFO("case " << cases << " " << to_string(dtype));
      const auto run = evaluate(fused, {golden(at + "v", dtype), golden(at + "g", dtype)}, golden(at + "dw", dtype));
      check_close(run.y, golden(at + "w"), tolerance);
      check_close(run.gradients[0], golden(at + "dv"), tolerance * 10);  // norms go down to 0.1
      check_close(run.gradients[1], golden(at + "dg"), tolerance);
    }
  }
  CHECK(cases == 4);
}

TEST_CASE("weight_norm: the gradient of v is orthogonal to v, and the weight does not see its length", "[ops][norm][paper]") {
  const auto in = inputs({7, 33}, DType::f64);
  const auto run = evaluate(fused, in, normal({7, 33}, 5, DType::f64));
  check_close(sum(run.gradients[0] * in[0], {1}), std::vector<double>(7, 0.0), 1e-12);
  CHECK(norm_of(run.gradients[0]) > 0.1);
  // v ten times as long: the same weight, a tenth of the gradient.
  const auto longer = evaluate(fused, {in[0] * 10.0, in[1]}, normal({7, 33}, 5, DType::f64));
  check_close(longer.y, run.y, 1e-12);
  check_close(longer.gradients[0] * 10.0, run.gradients[0], 1e-12);
}

TEST_CASE("weight_norm: tiny, huge and zero rows; bad rows alone", "[ops][norm]") {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const Tensor g = tensor<float>({2, 2, 2, 2, 2}, {5, 1});
  const Tensor dw = tensor<float>({1, 3, 1, 3, 1, 3, 1, 3, 1, 3}, {5, 2});
  const auto run = evaluate(fused, {tensor<float>({3e-30f, 4e-30f, 3e30f, 4e30f, 0, 0, 3, 4, 3e-37f, 4e-37f}, {5, 2}), g}, dw);
  check_close(run.y, {1.2, 1.6, 1.2, 1.6, 0, 0, 1.2, 1.6, 1.2, 1.6}, f32_rounding);
  check_close(run.gradients[1], {3, 3, 0, 3, 3}, f32_rounding);
  // dv = 2/5 ([1, 3] - 3 [0.6, 0.8]) for the ordinary row, over the scale for the others; none for zeros.
  const auto dv = values(run.gradients[0]);
  CHECK(dv[6] == Approx(-0.32).epsilon(1e-5));
  CHECK(dv[7] == Approx(0.24).epsilon(1e-5));
  CHECK(
      (dv[0] * 1e-30 == Approx(-0.32).epsilon(1e-5) && dv[2] * 1e30 == Approx(-0.32).epsilon(1e-5) && dv[8] * 1e-37 == Approx(-0.32).epsilon(1e-5)));
  CHECK((dv[4] == 0 && dv[5] == 0));
  for (const float bad : {inf, nan}) {
    const auto y = values(weight_norm(tensor<float>({1, bad, 3, 4}, {2, 2}), tensor<float>({5, 5}, {2, 1})));
    CHECK((std::isnan(y[0]) && std::isnan(y[1])));
    CHECK((y[2] == Approx(3) && y[3] == Approx(4)));
  }
}

TEST_CASE("weight_norm: empty weights (A12)", "[ops][norm][pitfall]") {
  for (const Shape& shape : {Shape{3, 0}, Shape{0, 4}, Shape{3, 0, 2}}) {
    const auto run = evaluate(fused, {zeros(shape), normal(norms_of(shape), 2)}, zeros(shape));
    CHECK(run.y.shape() == shape);
    CHECK(run.gradients[0].shape() == shape);
    check_close(run.gradients[1], zeros(norms_of(shape)), exact);
  }
}

TEST_CASE("weight_norm: the same bits for every thread count; what it saves", "[ops][norm][threads]") {
  for (const Shape& shape : {Shape{257, 613}, Shape{4, 1000}, Shape{2, 100'003}, Shape{70'001, 3}, Shape{100'003, 1}}) {
    INFO(shape.str());
    check_thread_counts(fused, inputs(shape));
  }
  const int64_t before = autograd::saved_bytes();
  auto in = inputs({8, 16});
  const Tensor y = weight_norm(in[0].set_requires_grad(), in[1]);
  CHECK(autograd::saved_bytes() - before == in[0].nbytes() + 2 * 8 * 4);
}

TEST_CASE("weight_norm: errors", "[ops][norm][errors]") {
  const Tensor v = ones({3, 2});
  CHECK_THROWS_WITH(weight_norm(v, ones({3})), contains("[weight_norm] g: expected [3, 1], got [3] (v is [3, 2])"));
  CHECK_THROWS_WITH(weight_norm(v, ones({1, 2})), contains("g: expected [3, 1], got [1, 2]"));
  CHECK_THROWS_WITH(weight_norm(v, ones({3, 1}, DType::f64)), contains("[weight_norm] g: expected f32 as v, got f64"));
  CHECK_THROWS_WITH(weight_norm(v, Tensor()), contains("[weight_norm] g: expected a tensor"));
  CHECK_THROWS_WITH(weight_norm(scalar(1), scalar(1)), contains("[weight_norm] v: expected [out, ...], got a scalar"));
  CHECK_THROWS_WITH(weight_norm(zeros({2, 4}, DType::i64), zeros({2, 1}, DType::i64)), contains("[weight_norm] expected"));
}
