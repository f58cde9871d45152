#include <lamina/autograd/graph.h>
#include <lamina/ops/elementwise.h>
#include <lamina/ops/loss.h>
#include <lamina/ops/reduce.h>
#include <lamina/ops/shape_ops.h>
#include <lamina/ops/softmax.h>

#include <limits>

#include "support/evaluate.h"
#include "support/golden.h"

using namespace lamina;
using namespace lamina::test;

namespace {

constexpr float inf32 = std::numeric_limits<float>::infinity();

constexpr Reduction reductions[] = {Reduction::none, Reduction::mean, Reduction::sum};
const char* name_of(Reduction r) { return r == Reduction::none ? "none" : r == Reduction::mean ? "mean" : "sum"; }

Tensor composed_reduction(const Tensor& losses, Reduction reduction, double counted) {
  if (reduction == Reduction::none) return losses;
  return reduction == Reduction::sum ? sum(losses) : sum(losses) / counted;
}

/// From log_softmax, one-hot targets and products. Ignored labels become class 0 with weight 0.
Tensor composed_cross_entropy(const Tensor& logits, const Tensor& labels, const CrossEntropyOptions& options) {
  const auto ids = labels.to_vector<int64_t>();
  std::vector<int64_t> safe;
  std::vector<double> counts;
  for (const int64_t id : ids) {
    safe.push_back(id == options.ignore_index ? 0 : id);
    counts.push_back(id != options.ignore_index);
  }
  const int64_t classes = logits.size(-1);
  const double s = options.label_smoothing;
  const Tensor target = one_hot(tensor(safe, labels.shape()), classes, logits.dtype()) * (1 - s) + s / static_cast<double>(classes);
  const Tensor weight = tensor(counts, labels.shape()).cast(logits.dtype());
  const Tensor losses = -sum(target * log_softmax(logits), {-1}) * weight;
  double counted = 0;
  for (const double c : counts) counted += c;
  return composed_reduction(losses, options.reduction, counted);
}

Tensor labels_for(const Shape& shape, int64_t classes, bool some_ignored, int64_t ignore = -100) {
  auto ids = integers(shape, 17, 0, classes).to_vector<int64_t>();
  for (size_t i = 1; some_ignored && i < ids.size(); i += 3) ids[i] = ignore;
  return tensor(ids, shape);
}

}  // namespace

TEST_CASE("cross_entropy: worked values", "[ops][loss]") {
  // Probabilities 1/8, 2/8, 5/8 and 1/2, 1/4, 1/4.
  const Tensor logits = tensor<double>({0, std::log(2.0), std::log(5.0), std::log(2.0), 0, 0}, {2, 3});
  const Tensor labels = tensor<int64_t>({1, 0}, {2});
  check_close(cross_entropy(logits, labels, {.reduction = Reduction::none}), {std::log(4.0), std::log(2.0)}, f64_rounding);
  check_close(cross_entropy(logits, labels), {std::log(8.0) / 2}, f64_rounding);
  check_close(cross_entropy(logits, labels, {.reduction = Reduction::sum}), {std::log(8.0)}, f64_rounding);
  CHECK(cross_entropy(logits, labels).rank() == 0);

  const auto run = evaluate([&](const auto& v) { return cross_entropy(v[0], labels); }, {logits}, scalar(4, DType::f64));
  check_close(run.gradients[0], {0.25, -1.5, 1.25, -1, 0.5, 0.5}, f64_rounding);

  // Smoothing 0.3 over 3 classes: target 0.1, 0.8, 0.1 for label 1.
  const double expected = 0.1 * std::log(8.0) + 0.8 * std::log(4.0) + 0.1 * std::log(1.6);
  const auto smooth = cross_entropy(logits, labels, {.label_smoothing = 0.3, .reduction = Reduction::none});
  CHECK(values(smooth)[0] == Approx(expected).epsilon(1e-13));
}

TEST_CASE("cross_entropy: equals the version out of elementary ops", "[ops][loss]") {
  for (const int64_t classes : {1, 2, 3, 31, 33, 127, 1000, 4100}) {
    for (const int64_t rows : {1, 2, 3, 31, 33}) {
      if (!device().is_cpu() && rows * classes > 10'000) continue;  // the emulator's time; the kernels' tests have them
      for (const Reduction reduction : reductions) {
        const CrossEntropyOptions options{.label_smoothing = rows % 2 ? 0.0 : 0.1, .reduction = reduction};
        INFO(rows << " rows of " << classes << ", " << name_of(reduction));
        const Tensor labels = labels_for({rows}, classes, rows > 2);
        const auto fn = [&](const auto& v) { return cross_entropy(v[0], labels, options); };
        const auto reference = [&](const auto& v) { return composed_cross_entropy(v[0], labels, options); };
        check_same(fn, reference, {normal({rows, classes}, 3, DType::f32, 0, 3)}, f32_sum, classes == 1);
      }
    }
  }
}

TEST_CASE("cross_entropy: leading axes", "[ops][loss]") {
  for (const Shape& items : {Shape{}, Shape{5}, Shape{3, 4}, Shape{2, 3, 4}, Shape{2, 1, 3, 2}}) {
    INFO(items.str());
    const Tensor labels = labels_for(items, 7, items.rank() > 0, -1);
    for (const Reduction reduction : reductions) {
      const CrossEntropyOptions options{.ignore_index = -1, .label_smoothing = 0.2, .reduction = reduction};
      const auto fn = [&](const std::vector<Tensor>& v) { return cross_entropy(v[0], labels, options); };
      const Tensor logits = normal(items.insert(items.rank(), 7), 2, DType::f64);
      check_same(
          fn, [&](const auto& v) { return composed_cross_entropy(v[0], labels, options); }, {logits}, f64_rounding);
      check_gradients(fn, {logits});
    }
  }
}

TEST_CASE("cross_entropy: gradients", "[ops][loss][gradcheck]") {
  for (const int64_t classes : {2, 3, 8, 33}) {
    for (const double smoothing : {0.0, 0.1, 0.9}) {
      const Tensor labels = labels_for({9}, classes, true);
      const CrossEntropyOptions options{.label_smoothing = smoothing, .reduction = Reduction::none};
      check_gradients([&](const auto& v) { return cross_entropy(v[0], labels, options); }, {normal({9, classes}, 4, DType::f64, 0, 2)});
    }
  }
}

TEST_CASE("cross_entropy: PyTorch's values", "[ops][loss][golden]") {
  const Golden golden("cross_entropy");
  int cases = 0;
  for (; golden.has(std::to_string(cases) + ".logits"); ++cases) {
    const std::string at = std::to_string(cases) + ".";
    for (const auto& [dtype, tolerance] : {std::pair{DType::f64, f64_rounding}, std::pair{DType::f32, f32_sum}}) {
      const Tensor weight = golden(at + "weight", dtype);
      for (const Reduction reduction : reductions) {
        INFO("case " << cases << " " << name_of(reduction) << " " << to_string(dtype));
        const CrossEntropyOptions options{.label_smoothing = golden.number(at + "smoothing"), .reduction = reduction};
        const auto fn = [&](const auto& v) { return cross_entropy(v[0], golden(at + "labels"), options); };
        const Tensor dy = reduction == Reduction::none ? weight : scalar(values(weight)[0], dtype);
        const Evaluation run = evaluate(fn, {golden(at + "logits", dtype)}, dy);
        check_close(run.y, golden(at + name_of(reduction)), tolerance);
        check_close(run.gradients[0], golden(at + name_of(reduction) + ".dlogits"), tolerance);
      }
    }
  }
  CHECK(cases == 4);
}

TEST_CASE("cross_entropy: extreme logits (C03, C05)", "[ops][loss][pitfall]") {
  const Tensor logits = tensor<float>({-781.1664f, -1043.7303f, 890.2518f, -1234.9999f}, {1, 4});
  constexpr double input_rounding = 2e-4 / 1000;  // of inputs near 1000 in f32
  check_close(cross_entropy(logits, tensor<int64_t>({0}, {1})), {1671.4182}, input_rounding);
  const auto run = evaluate([](const auto& v) { return cross_entropy(v[0], tensor<int64_t>({3}, {1})); }, {logits}, ones({}));
  check_close(run.y, {2125.2517}, input_rounding);
  check_close(run.gradients[0], {0, 0, 1, -1}, exact);

  // A masked class: finite loss and gradient.
  const Tensor masked = tensor<float>({0, -inf32, 0}, {1, 3});
  const auto masked_run = evaluate([](const auto& v) { return cross_entropy(v[0], tensor<int64_t>({0}, {1})); }, {masked}, ones({}));
  check_close(masked_run.y, {std::log(2.0)}, f32_rounding);
  check_close(masked_run.gradients[0], {-0.5, 0, 0.5}, f32_rounding);
}

TEST_CASE("cross_entropy: the divisor counts what is not ignored (C07)", "[ops][loss][pitfall]") {
  const Tensor logits = tensor<float>({2, 0, 0, 0, 0, 0}, {2, 3});
  for (const int64_t ignore : {int64_t{-100}, int64_t{255}, int64_t{2}}) {
    const Tensor labels = tensor<int64_t>({0, ignore}, {2});
    const auto run = evaluate([&](const auto& v) { return cross_entropy(v[0], labels, {.ignore_index = ignore}); }, {logits}, ones({}));
    check_close(run.y, {0.239545}, six_digits);
    const auto dx = values(run.gradients[0]);
    CHECK(dx[0] == Approx(-2 / (std::exp(2.0) + 2)).epsilon(1e-6));
    CHECK((dx[3] == 0 && dx[4] == 0 && dx[5] == 0));
    check_close(nll_loss(log_softmax(logits), labels, ignore), {0.239545}, six_digits);
  }
}

TEST_CASE("cross_entropy: an ignored row may hold anything", "[ops][loss]") {
  const Tensor logits = tensor<float>({2, 0, inf32, std::nanf("")}, {2, 2});
  const Tensor labels = tensor<int64_t>({1, -100}, {2});
  const auto run = evaluate([&](const auto& v) { return cross_entropy(v[0], labels); }, {logits}, ones({}));
  check_close(run.y, {std::log(std::exp(2.0) + 1)}, f32_rounding);
  CHECK((values(run.gradients[0])[2] == 0 && values(run.gradients[0])[3] == 0));
}

TEST_CASE("losses: nothing counted gives 0 and a zero gradient (C07)", "[ops][loss][pitfall]") {
  for (const Reduction reduction : {Reduction::mean, Reduction::sum}) {
    for (const int64_t rows : {0, 3}) {
      const Tensor labels = full({rows}, -100, DType::i64);
      const Tensor x = normal({rows, 4}, 1);
      const auto ce = evaluate([&](const auto& v) { return cross_entropy(v[0], labels, {.reduction = reduction}); }, {x}, full({}, 3));
      const auto nll = evaluate([&](const auto& v) { return nll_loss(v[0], labels, -100, reduction); }, {x}, full({}, 3));
      for (const auto& run : {ce, nll}) {
        check_close(run.y, {0.0}, exact);
        check_close(run.gradients[0], zeros({rows, 4}), exact);
      }
    }
    const Tensor none = zeros({0, 3});
    for (const auto& loss : {mse_loss, bce_with_logits}) {
      const auto run = evaluate([&](const auto& v) { return loss(v[0], v[1], reduction); }, {none, none}, ones({}));
      check_close(run.y, {0.0}, exact);
      CHECK(run.gradients[0].shape() == Shape{0, 3});
    }
  }
  CHECK(cross_entropy(zeros({0, 4}), zeros({0}, DType::i64), {.reduction = Reduction::none}).shape() == Shape{0});
  check_close(cross_entropy(zeros({2, 0}), full({2}, -100, DType::i64)), {0.0}, exact);
}

TEST_CASE("cross_entropy: labels out of range (C08)", "[ops][loss][pitfall][errors]") {
  const Tensor logits = zeros({4, 3});
  for (const int64_t bad : {int64_t{3}, int64_t{-1}, int64_t{255}, std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min()}) {
    const Tensor labels = tensor<int64_t>({0, 2, bad, 1}, {4});
    const std::string cpu = "labels: expected 0..2 (or -100 to ignore), got " + std::to_string(bad) + " at position 2";
    const std::string gpu = "labels: " + std::to_string(bad) + " at position 2 is out of range 0 to 2 (found on the GPU)";
    CHECK_THROWS_WITH(values(cross_entropy(logits, labels)), contains("[cross_entropy] " + (device().is_cpu() ? cpu : gpu)));
    CHECK_THROWS_WITH(values(nll_loss(logits, labels)), contains("[nll_loss] " + (device().is_cpu() ? cpu : gpu)));
  }
  CHECK_NOTHROW(cross_entropy(logits, tensor<int64_t>({0, 2, 255, 1}, {4}), {.ignore_index = 255}));
}

TEST_CASE("losses: errors", "[ops][loss][errors]") {
  const Tensor x = zeros({4, 3}), labels = zeros({4}, DType::i64);
  CHECK_THROWS_WITH(cross_entropy(x, zeros({4})), contains("[cross_entropy] labels: expected class indices of i64, got f32 [4]"));
  CHECK_THROWS_WITH(cross_entropy(x, zeros({3}, DType::i64)), contains("labels: expected [4], got [3] (logits is [4, 3])"));
  CHECK_THROWS_WITH(cross_entropy(x, zeros({4, 1}, DType::i64)), contains("expected [4], got [4, 1]"));
  CHECK_THROWS_WITH(cross_entropy(zeros({}), labels), contains("logits: expected [..., K], got []"));
  CHECK_THROWS_WITH(cross_entropy(labels, labels), contains("[cross_entropy] expected") && contains("i64"));
  for (const double s : {-0.1, 1.0, std::nan("")})
    CHECK_THROWS_WITH(cross_entropy(x, labels, {.label_smoothing = s}),
                      contains("[cross_entropy] label_smoothing: expected a number in [0, 1), got"));
  CHECK_THROWS_WITH(nll_loss(x, zeros({4}, DType::u8)), contains("[nll_loss] labels") && contains("u8"));
  // No silent broadcasting: [4, 1] against [4] would average 16 differences.
  CHECK_THROWS_WITH(mse_loss(zeros({4, 1}), zeros({4})), contains("[mse_loss] target: expected [4, 1] as x, got [4]"));
  CHECK_THROWS_WITH(mse_loss(x, zeros({4, 3}, DType::f64)), contains("[mse_loss] target: expected f32 as x, got f64"));
  CHECK_THROWS_WITH(bce_with_logits(x, zeros({3, 4})), contains("[bce_with_logits] target: expected [4, 3] as x, got [3, 4]"));
  CHECK_THROWS_WITH(bce_with_logits(labels, labels), contains("[bce_with_logits]") && contains("i64"));
}

TEST_CASE("nll_loss: picks log-probabilities", "[ops][loss]") {
  const Tensor log_probs = tensor<double>({-1, -2, -3, -4, -5, -6}, {2, 3});
  const Tensor labels = tensor<int64_t>({2, 0}, {2});
  check_close(nll_loss(log_probs, labels, -100, Reduction::none), {3, 4}, exact);
  const auto run = evaluate([&](const auto& v) { return nll_loss(v[0], labels); }, {log_probs}, scalar(3, DType::f64));
  check_close(run.y, {3.5}, exact);
  check_close(run.gradients[0], {0, 0, -1.5, -1.5, 0, 0}, exact);
  for (const Reduction reduction : reductions)
    check_gradients([&](const auto& v) { return nll_loss(v[0], labels_for({3, 5}, 4, true), -100, reduction); }, {normal({3, 5, 4}, 1, DType::f64)});
  // log_softmax then nll_loss is cross_entropy, with its gradient.
  const Tensor ids = labels_for({33}, 127, true);
  check_same([&](const auto& v) { return cross_entropy(v[0], ids); }, [&](const auto& v) { return nll_loss(log_softmax(v[0]), ids); },
             {normal({33, 127}, 6, DType::f32, 0, 4)}, f32_sum);
}

TEST_CASE("mse_loss", "[ops][loss]") {
  const Tensor x = tensor<double>({1, 2, 3, 4}, {2, 2}), t = tensor<double>({1, 0, 5, 1}, {2, 2});
  check_close(mse_loss(x, t, Reduction::none), {0, 4, 4, 9}, exact);
  check_close(mse_loss(x, t), {4.25}, exact);
  check_close(mse_loss(x, t, Reduction::sum), {17}, exact);
  const auto run = evaluate([](const auto& v) { return mse_loss(v[0], v[1]); }, {x, t}, scalar(2, DType::f64));
  check_close(run.gradients[0], {0, 2, -2, 3}, exact);
  check_close(run.gradients[1], {0, -2, 2, -3}, exact);
  for (const Reduction reduction : reductions) {
    const auto fn = [&](const std::vector<Tensor>& v) { return mse_loss(v[0], v[1], reduction); };
    for (const Shape& shape : {Shape{}, Shape{31}, Shape{3, 5}, Shape{2, 1, 3, 2, 2}})
      check_gradients(fn, {normal(shape, 1, DType::f64), normal(shape, 2, DType::f64)});
    const auto reference = [&](const auto& v) { return composed_reduction(square(v[0] - v[1]), reduction, 4100.0 * 3); };
    check_same(fn, reference, {normal({3, 4100}, 3), normal({3, 4100}, 4)}, f32_sum);
  }
}

TEST_CASE("mse_loss: a mean of 20 million equal squares does not stop growing in f32 (A23)", "[ops][loss][pitfall][large]") {
  check_close(mse_loss(ones({20'000'000}), zeros({20'000'000})), {1}, exact);
}

TEST_CASE("bce_with_logits", "[ops][loss]") {
  const Tensor x = tensor<double>({0, std::log(3.0), -std::log(3.0)}, {3}), t = tensor<double>({1, 0, 0.5}, {3});
  check_close(bce_with_logits(x, t, Reduction::none), {std::log(2.0), std::log(4.0), 0.5 * std::log(4.0) + 0.5 * std::log(4.0 / 3)}, f64_rounding);
  const auto run = evaluate([](const auto& v) { return bce_with_logits(v[0], v[1]); }, {x, t}, scalar(3, DType::f64));
  check_close(run.gradients[0], {-0.5, 0.75, -0.25}, f64_rounding);
  check_close(run.gradients[1], {0, -std::log(3.0), std::log(3.0)}, f64_rounding);

  for (const Reduction reduction : reductions) {
    const auto fn = [&](const std::vector<Tensor>& v) { return bce_with_logits(v[0], v[1], reduction); };
    check_gradients(fn, {normal({7, 3}, 1, DType::f64, 0, 3), uniform({7, 3}, 2, 0, 1, DType::f64)});
    const auto reference = [&](const auto& v) {
      const Tensor p = sigmoid(v[0]);
      return composed_reduction(-(v[1] * log(p) + (1.0 - v[1]) * log(1.0 - p)), reduction, 33.0 * 127);
    };
    check_same(fn, reference, {normal({33, 127}, 3, DType::f32, 0, 3), uniform({33, 127}, 4, 0, 1)}, f32_sum);
  }

  // Far out: no overflow, and the small tail survives.
  const Tensor far = tensor<float>({1000, -1000, 20, -20, 1e30f}, {5}), sides = tensor<float>({0, 1, 1, 0, 1}, {5});
  const auto far_run = evaluate([](const auto& v) { return bce_with_logits(v[0], v[1], Reduction::none); }, {far, sides}, ones({5}));
  const double tail = std::log1p(std::exp(-20.0));
  const auto loss = values(far_run.y);
  CHECK((loss[0] == 1000 && loss[1] == 1000 && loss[4] == 0));
  CHECK(loss[2] == Approx(tail).epsilon(1e-5));
  CHECK(loss[3] == Approx(tail).epsilon(1e-5));
  check_close(far_run.gradients[0], {1, -1, 0, 0, 0}, f32_rounding);
  // Targets outside [0, 1] follow the formula, as in PyTorch.
  check_close(bce_with_logits(tensor<double>({2}, {1}), tensor<double>({-1}, {1})), {4 + std::log1p(std::exp(-2.0))}, f64_rounding);
}

TEST_CASE("losses: the same bits for every thread count", "[ops][loss][threads]") {
  const Tensor ids = labels_for({513}, 301, true);
  for (const Reduction reduction : reductions) {
    check_thread_counts([&](const auto& v) { return cross_entropy(v[0], ids, {.label_smoothing = 0.1, .reduction = reduction}); },
                        {normal({513, 301}, 1)});
    check_thread_counts([&](const auto& v) { return mse_loss(v[0], v[1], reduction); }, {normal({100'003}, 1), normal({100'003}, 2)});
    check_thread_counts([&](const auto& v) { return bce_with_logits(v[0], v[1], reduction); }, {normal({100'003}, 1), uniform({100'003}, 2, 0, 1)});
  }
}

TEST_CASE("losses: what they save", "[ops][loss]") {
  const int64_t before = autograd::saved_bytes();
  const Tensor x = normal({8, 5}, 1).set_requires_grad(), ids = labels_for({8}, 5, false);
  const Tensor ce = cross_entropy(x, ids);
  CHECK(autograd::saved_bytes() - before == x.nbytes() + ids.nbytes() + 8 * 4);
  const Tensor nll = nll_loss(x, ids);
  CHECK(autograd::saved_bytes() - before == x.nbytes() + 2 * ids.nbytes() + 8 * 4);
  const NoGrad no_grad;
  CHECK(!cross_entropy(x, ids).requires_grad());
}
