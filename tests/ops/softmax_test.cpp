#include <lamina/autograd/graph.h>
#include <lamina/ops/elementwise.h>
#include <lamina/ops/reduce.h>
#include <lamina/ops/softmax.h>

#include <limits>

#include "support/evaluate.h"
#include "support/golden.h"

using namespace lamina;
using namespace lamina::test;

namespace {

constexpr double inf = std::numeric_limits<double>::infinity();
constexpr float inf32 = std::numeric_limits<float>::infinity();
const double nan64 = std::numeric_limits<double>::quiet_NaN();

Tensor composed_softmax(const Tensor& x, int axis) {
  const Tensor e = exp(x - max(x, {axis}, true));
  return e / sum(e, {axis}, true);
}
Tensor composed_log_softmax(const Tensor& x, int axis) {
  const Tensor shifted = x - max(x, {axis}, true);
  return shifted - log(sum(exp(shifted), {axis}, true));
}

}  // namespace

TEST_CASE("softmax: worked values", "[ops][softmax]") {
  // exp(0), exp(ln 2), exp(ln 5) = 1, 2, 5 of 8.
  const Tensor x = tensor<double>({0, std::log(2.0), std::log(5.0)}, {1, 3});
  check_close(softmax(x), {0.125, 0.25, 0.625}, f64_rounding);
  check_close(log_softmax(x), {std::log(0.125), std::log(0.25), std::log(0.625)}, f64_rounding);
  const Tensor columns = tensor<double>({0, 7, std::log(3.0), 7}, {2, 2});
  check_close(softmax(columns, 0), {0.25, 0.5, 0.75, 0.5}, f64_rounding);

  // dx = y (dy - y dy): y dy = 0.25 for dy = [2, 0, 0].
  const Evaluation run = evaluate([](const auto& in) { return softmax(in[0]); }, {x}, tensor<double>({2, 0, 0}, {1, 3}));
  check_close(run.gradients[0], {0.125 * 1.75, -0.0625, -0.15625}, f64_rounding);
  // log: dx = dy - y sum(dy).
  const Evaluation log_run = evaluate([](const auto& in) { return log_softmax(in[0]); }, {x}, tensor<double>({2, 0, 0}, {1, 3}));
  check_close(log_run.gradients[0], {1.75, -0.5, -1.25}, f64_rounding);
}

TEST_CASE("softmax: equals the version out of elementary ops", "[ops][softmax]") {
  for (const int64_t classes : {1, 2, 3, 31, 33, 127, 1000, 4100}) {
    for (const int64_t rows : {1, 2, 3, 31, 33}) {
      INFO(rows << " rows of " << classes);
      const std::vector<Tensor> in{normal({rows, classes}, 3, DType::f32, 0, 3)};
      const bool vanishes = classes == 1;  // y = 1 whatever x is
      check_same([](const auto& v) { return softmax(v[0]); }, [](const auto& v) { return composed_softmax(v[0], -1); }, in, f32_rounding, vanishes);
      check_same([](const auto& v) { return log_softmax(v[0]); }, [](const auto& v) { return composed_log_softmax(v[0], -1); }, in, f32_sum,
                 vanishes);
    }
  }
  for (int axis = -4; axis < 4; ++axis) {
    const std::vector<Tensor> in{normal({3, 5, 2, 7}, 8, DType::f32, 1, 2)};
    check_same([=](const auto& v) { return softmax(v[0], axis); }, [=](const auto& v) { return composed_softmax(v[0], axis); }, in, f32_rounding);
    check_same([=](const auto& v) { return log_softmax(v[0], axis); }, [=](const auto& v) { return composed_log_softmax(v[0], axis); }, in, f32_sum);
  }
}

TEST_CASE("softmax: gradients", "[ops][softmax][gradcheck]") {
  for (const Shape& shape : {Shape{9}, Shape{4, 3}, Shape{3, 5, 2}, Shape{2, 3, 1, 4}, Shape{2, 1, 3, 2, 2}}) {
    for (int axis = 0; axis < shape.rank(); ++axis) {
      if (shape[axis] == 1) continue;
      INFO(shape.str() << " axis " << axis);
      check_gradients([=](const auto& v) { return softmax(v[0], axis); }, {normal(shape, 5, DType::f64)});
      check_gradients([=](const auto& v) { return log_softmax(v[0], axis); }, {normal(shape, 6, DType::f64)});
    }
  }
}

TEST_CASE("softmax: PyTorch's values", "[ops][softmax][golden]") {
  const Golden golden("softmax");
  for (const auto& [dtype, tolerance] : {std::pair{DType::f64, f64_rounding}, std::pair{DType::f32, f32_sum}}) {
    for (int axis = 0; axis < 3; ++axis) {
      for (const std::string name : {"softmax", "log_softmax"}) {
        const auto fn = [&](const std::vector<Tensor>& v) { return name == "softmax" ? softmax(v[0], axis) : log_softmax(v[0], axis); };
        const Evaluation run = evaluate(fn, {golden("x", dtype)}, golden("dy", dtype));
        const std::string key = name + "." + std::to_string(axis);
        check_close(run.y, golden(key + ".y"), tolerance);
        check_close(run.gradients[0], golden(key + ".dx"), tolerance);
      }
    }
  }
}

TEST_CASE("softmax: no overflow at large logits (C03)", "[ops][softmax][pitfall]") {
  const Tensor x = tensor<float>({-781.1664f, -1043.7303f, 890.2518f, -1234.9999f}, {1, 4});
  constexpr double input_rounding = 2e-4 / 1000;  // of inputs near 1000 in f32
  check_close(log_softmax(x), {-1671.4182, -1933.9821, 0, -2125.2517}, input_rounding);
  check_close(softmax(x), {0, 0, 1, 0}, exact);
  const Evaluation run = evaluate([](const auto& v) { return log_softmax(v[0]); }, {x}, tensor<float>({1, 2, 3, 4}, {1, 4}));
  check_close(run.gradients[0], {1, 2, -7, 4}, exact);
}

TEST_CASE("softmax: infinities (C05)", "[ops][softmax][pitfall]") {
  const auto one_row = [](float a, float b) { return tensor<float>({a, b}, {1, 2}); };
  check_close(softmax(one_row(0, -inf32)), {1, 0}, exact);
  check_close(log_softmax(one_row(0, -inf32)), {0, -inf}, exact);
  check_close(softmax(one_row(inf32, 0)), {nan64, nan64}, exact);
  check_close(softmax(one_row(-inf32, -inf32)), {nan64, nan64}, exact);

  for (const bool log : {false, true}) {
    const auto fn = [&](const std::vector<Tensor>& v) { return log ? log_softmax(v[0]) : softmax(v[0]); };
    const Evaluation run = evaluate(fn, {tensor<float>({0, -inf32, 0}, {1, 3})}, tensor<float>({3, 1, 1}, {1, 3}));
    check_close(run.gradients[0], log ? std::vector<double>{0.5, 1, -1.5} : std::vector<double>{0.5, 0, -0.5}, f32_rounding);
  }
  // A bad row leaves the others alone.
  check_close(softmax(tensor<float>({-inf32, -inf32, 2, 2}, {2, 2})), {nan64, nan64, 0.5, 0.5}, exact);
}

TEST_CASE("softmax: rows sum to one, and a shift changes nothing", "[ops][softmax]") {
  const Tensor x = normal({17, 1001}, 12, DType::f64, 0, 5);
  const Tensor y = softmax(x);
  check_close(sum(y, {1}), std::vector<double>(17, 1.0), f64_rounding);
  check_close(softmax(x + 100.0), y, f64_rounding);
  check_close(exp(log_softmax(x)), y, f64_rounding);
}

TEST_CASE("softmax: empty tensors", "[ops][softmax]") {
  for (const Shape& shape : {Shape{0, 3}, Shape{3, 0}, Shape{0}, Shape{2, 0, 4}}) {
    for (int axis = 0; axis < shape.rank(); ++axis) {
      const Evaluation run = evaluate([=](const auto& v) { return softmax(v[0], axis) + log_softmax(v[0], axis); }, {zeros(shape)}, zeros(shape));
      CHECK(run.y.shape() == shape);
      CHECK(run.gradients[0].shape() == shape);
    }
  }
}

TEST_CASE("softmax: the same bits for every thread count", "[ops][softmax][threads]") {
  for (const bool log : {false, true}) {
    const auto fn = [=](int axis) { return [=](const std::vector<Tensor>& v) { return log ? log_softmax(v[0], axis) : softmax(v[0], axis); }; };
    check_thread_counts(fn(-1), {normal({257, 613}, 1)});
    check_thread_counts(fn(-1), {normal({2, 100003}, 2)});
    check_thread_counts(fn(0), {normal({500, 333}, 3)});
    check_thread_counts(fn(1), {normal({7, 91, 301}, 4, DType::f64)});
  }
}

TEST_CASE("softmax: saves its result and nothing else, and does not keep it alive (E12)", "[ops][softmax][pitfall]") {
  const int64_t before = autograd::saved_bytes(), nodes = autograd::live_nodes();
  const Tensor x = normal({8, 16}, 1).set_requires_grad();
  for (const bool log : {false, true}) {
    const Tensor y = log ? log_softmax(x) : softmax(x);
    CHECK(autograd::saved_bytes() - before == y.nbytes());
    CHECK(autograd::live_nodes() - nodes == 1);
  }
  CHECK(autograd::saved_bytes() == before);
  CHECK(autograd::live_nodes() == nodes);
}

TEST_CASE("softmax: errors", "[ops][softmax][errors]") {
  CHECK_THROWS_WITH(softmax(zeros({2, 3}), 2), contains("[softmax]") && contains("2"));
  CHECK_THROWS_WITH(log_softmax(zeros({2, 3}), -3), contains("[log_softmax]") && contains("-3"));
  CHECK_THROWS_WITH(softmax(zeros({2}, DType::i64)), contains("[softmax] expected") && contains("f32 or f64") && contains("i64"));
  CHECK_THROWS_WITH(softmax(Tensor()), contains("undefined"));
}
