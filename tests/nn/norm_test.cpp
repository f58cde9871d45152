#include <lamina/nn/norm.h>

#include <cmath>
#include <limits>

#include <lamina/nn/layers.h>
#include <lamina/nn/mlp.h>
#include <lamina/nn/sequential.h>

#include "nn/support.h"
#include "support/catch.h"
#include "support/random.h"

using namespace lamina;
using namespace lamina::test;

TEST_CASE("LayerNorm normalises the trailing axes") {
  auto norm = on_device(nn::LayerNorm(4));
  // A05: eps inside the root, biased variance.
  check_close(norm(tensor<float>({1, 0, 0, 0}, {1, 4})), {1.7320046, -0.5773348, -0.5773348, -0.5773348});
  norm.weight.set(tensor<float>({1, 2, 3, 4}, {4}));
  norm.bias.set(tensor<float>({0, 0, 0, 1}, {4}));
  check_close(norm(tensor<float>({1, 0, 0, 0}, {1, 4})), {1.7320046, -1.1546697, -1.7320046, -1.3093394}, six_digits);
  auto plane = on_device(nn::LayerNorm(Shape{2, 3}, {.gain = false}));
  CHECK(plane(normal({5, 2, 3}, 1)).shape() == Shape{5, 2, 3});
  CHECK(names(plane.state_dict()) == "bias");
  CHECK(plane.describe() == "LayerNorm([2, 3], no gain)");
  CHECK(norm.describe() == "LayerNorm(4)");
  CHECK_THROWS_WITH(norm(zeros({2, 5})), contains("[layer_norm]") && contains("[2, 5]"));
  CHECK_THROWS_WITH(nn::LayerNorm(Shape{}), contains("[layer_norm] normalized_shape: expected at least one axis, got []"));
  CHECK_THROWS_WITH(nn::RMSNorm(Shape{}), contains("[rms_norm] normalized_shape: expected at least one axis, got []"));
  CHECK_THROWS_WITH(nn::LayerNorm(4, {.eps = -1}), contains("[layer_norm] eps: expected a value >= 0, got -1"));
}

TEST_CASE("A08: BatchNorm1d with one value per channel in training is an error that names the layer") {
  auto norm = on_device(nn::BatchNorm1d(7));
  CHECK_THROWS_WITH(norm(ones({1, 7})), contains("[batch_norm] x: one value per channel has no variance: got [1, 7] (in BatchNorm1d(7))"));
  CHECK(norm.num_batches_tracked.tensor().item() == 0);
  norm.eval();
  CHECK(norm(ones({1, 7})).shape() == Shape{1, 7});
  auto two = on_device(nn::BatchNorm1d(2));
  check_close(two(tensor<float>({1, 3, 5, 9}, {1, 2, 2})), {-0.999995, 0.999995, -0.9999988, 0.9999987});
  // A12: an empty batch leaves the statistics alone.
  auto five = on_device(nn::BatchNorm1d(5));
  CHECK(five(zeros({0, 5})).shape() == Shape{0, 5});
  check_close(five.running_mean.tensor(), {0, 0, 0, 0, 0}, exact);
  check_close(five.running_var.tensor(), {1, 1, 1, 1, 1}, exact);
  CHECK_THROWS_WITH(two(zeros({4, 3})), contains("x: expected [N, 2] or [N, 2, L], got [4, 3] (in BatchNorm1d(2))"));
  CHECK_THROWS_WITH(two(zeros({2})), contains("got [2]"));
  CHECK_THROWS_WITH(two(zeros({4, 2, 1, 1})), contains("got [4, 2, 1, 1]"));
  CHECK_THROWS_WITH(nn::BatchNorm1d(2, {.momentum = 1.5}), contains("momentum: expected a value in [0, 1], got 1.5"));
  CHECK_THROWS_WITH(nn::BatchNorm1d(-2), contains("channel count >= 0"));
}

TEST_CASE("A09: running statistics take the unbiased variance, the forward pass the biased one") {
  std::vector<float> x;
  for (int n = 1; n <= 4; ++n)
    for (int c = 0; c < 3; ++c)
      for (int i = 0; i < 4; ++i) x.push_back(static_cast<float>(n + 4 * c + i));
  auto norm = on_device(nn::BatchNorm1d(3));
  const auto y = values(norm(tensor(x, {4, 3, 4})));
  const std::vector<double> first = {-1.897363, -1.264909, -0.632454, 0};
  for (size_t i = 0; i < 4; ++i) CHECK(y[i] == Approx(first[i]).margin(six_digits));
  check_close(norm.running_mean.tensor(), {0.4, 0.8, 1.2});
  check_close(norm.running_var.tensor(), {1.1666667, 1.1666667, 1.1666667});
  CHECK(norm.num_batches_tracked.tensor().item() == 1);
  // Evaluation uses them and changes nothing.
  norm.eval();
  check_close(norm(tensor<float>({1, 1, 1}, {1, 3})), {0.6 / std::sqrt(1.1666767), 0.2 / std::sqrt(1.1666767), -0.2 / std::sqrt(1.1666767)});
  CHECK(norm.num_batches_tracked.tensor().item() == 1);
}

TEST_CASE("BatchNorm1d options: cumulative averages, no tracking, no affine, unbiased") {
  const Tensor a = tensor<float>({0, 2}, {2, 1}), b = tensor<float>({4, 10}, {2, 1});
  auto cumulative = on_device(nn::BatchNorm1d(1, {.cumulative = true}));
  cumulative(a);
  cumulative(b);
  check_close(cumulative.running_mean.tensor(), {4});  // (1 + 7) / 2
  check_close(cumulative.running_var.tensor(), {10});  // (2 + 18) / 2

  auto untracked = on_device(nn::BatchNorm1d(1, {.affine = false, .track_running_stats = false}));
  CHECK(untracked.state_dict().empty());
  const Tensor training = untracked(a);
  untracked.eval();
  CHECK(same_bits(untracked(a), training));  // still the batch's
  CHECK_THROWS_WITH(untracked(ones({1, 1})), contains("one value per channel") && contains("BatchNorm1d(1, not affine, no running statistics)"));

  auto unbiased = on_device(nn::BatchNorm1d(1, {.unbiased = true}));
  check_close(unbiased(a), {-1 / std::sqrt(2 + 1e-5), 1 / std::sqrt(2 + 1e-5)});
  CHECK(unbiased.describe() == "BatchNorm1d(1, unbiased)");
}

TEST_CASE("population statistics are the plain average over the data, whatever the momentum") {
  nn::Sequential model(nn::Dropout(0.5), nn::BatchNorm1d(1, {.momentum = 0.9}));
  init(model, 1);
  auto& norm = model.at<nn::BatchNorm1d>(1);
  const Tensor a = tensor<float>({0, 2}, {2, 1}), b = tensor<float>({4, 10}, {2, 1}), c = tensor<float>({1, 1}, {2, 1});
  for (int i = 0; i < 5; ++i) norm(c);
  // A11: not even an infected average stays.
  norm.running_mean.tensor().fill_(std::numeric_limits<double>::quiet_NaN());
  model.at<nn::Dropout>(0).eval();
  const Tensor stream = model.at<nn::Dropout>(0).rng.tensor().clone();
  model.train();
  norm.eval();
  nn::recompute_population_statistics(model, [&] {
    CHECK_FALSE(model(a).requires_grad());
    model(b);
  });
  check_close(norm.running_mean.tensor(), {4});
  check_close(norm.running_var.tensor(), {10});
  CHECK(norm.num_batches_tracked.tensor().item() == 5);
  CHECK_FALSE(norm.training());  // modes as before
  CHECK(model.at<nn::Dropout>(0).training());
  CHECK(same_bits(stream, model.at<nn::Dropout>(0).rng.tensor()));  // dropout was off
  check_close(norm(tensor<float>({4}, {1, 1})), {0.0}, f32_rounding);

  // Without a batch, or when the pass fails, the former statistics stay.
  nn::recompute_population_statistics(model, [] {});
  check_close(norm.running_mean.tensor(), {4});
  CHECK_THROWS_WITH(nn::recompute_population_statistics(model, [&] { model(c), fail("test", "stop"); }), contains("stop"));
  check_close(norm.running_mean.tensor(), {4});
  check_close(norm.running_var.tensor(), {10});
  CHECK(norm.num_batches_tracked.tensor().item() == 5);
}

TEST_CASE("A17: every norm passes gradients to its parameters and to earlier layers, in training and evaluation") {
  for (const std::string& name : mlp_norms())
    for (const bool training : {true, false}) {
      INFO(name << (training ? " training" : " evaluation"));
      // Without the biases, which batch norm would subtract again.
      nn::Sequential model = nn::MLP({.sizes = {4, 6, 1}, .norm = name, .activation = "tanh", .bias = false});
      init(model, 3);
      model.cast(DType::f64);
      if (name != "none") {
        // Gains and biases other than 1 and 0; running statistics other than 0 and 1.
        for (const auto& [path, parameter] : model.named_parameters())
          if (path.starts_with("1.")) parameter->set(uniform({6}, path.size(), 0.5, 1.5));
        for (const auto& [path, buffer] : model.named_buffers())
          if (is_float(buffer->tensor().dtype())) buffer->tensor().copy_(uniform({6}, path.size(), 0.5, 1.5, DType::f64));
      }
      model.train(training);
      check_module_gradients(model, normal({5, 4}, 2, DType::f64));
    }
}
