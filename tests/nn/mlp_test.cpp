#include <lamina/nn/mlp.h>

#include <algorithm>
#include <thread>

#include <lamina/ops/loss.h>
#include <lamina/optim/optimizer.h>

#include "nn/support.h"
#include "support/catch.h"
#include "support/golden.h"
#include "support/random.h"

using namespace lamina;
using namespace lamina::test;

namespace {

std::string layers(nn::Sequential& model) {
  std::string text;
  for (const auto& [path, module] : model.modules())
    if (!path.empty()) text += (text.empty() ? "" : " ") + module->describe();
  return text;
}

/// Trains on random labels of fixed inputs, which is to learn by heart; the losses.
std::vector<double> train(nn::Sequential& model, int steps) {
  const Tensor x = normal({16, 8}, 5), labels = integers({16}, 6, 0, 3);
  optim::Adam adam(model.parameters(), {.lr = 1e-2});
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    const Tensor loss = cross_entropy(model(x), labels);
    losses.push_back(loss.item());
    adam.zero_grad();
    loss.backward();
    adam.step();
  }
  return losses;
}

}  // namespace

TEST_CASE("MLP places norms, activations and dropout") {
  nn::Sequential plain = nn::MLP({.sizes = {3, 5, 4, 2}});
  CHECK(layers(plain) == "Linear(3 -> 5) ReLU Linear(5 -> 4) ReLU Linear(4 -> 2)");
  nn::Sequential full = nn::MLP({.sizes = {3, 5, 2}, .norm = "layer", .norm_output = true, .activation = "gelu", .dropout = 0.5});
  CHECK(layers(full) == "Linear(3 -> 5) LayerNorm(5) GELU Dropout(0.5) Linear(5 -> 2) LayerNorm(2)");
  nn::Sequential after = nn::MLP({.sizes = {3, 5, 2},
                                  .norm = "batch",
                                  .norm_after_activation = true,
                                  .activation = "tanh",
                                  .bias = false,
                                  .batch_norm = {.track_running_stats = false, .unbiased = true}});
  CHECK(layers(after) == "Linear(3 -> 5, no bias) Tanh BatchNorm1d(5, no running statistics, unbiased) Linear(5 -> 2, no bias)");
  nn::Sequential groups = nn::MLP({.sizes = {3, 6, 4, 2}, .norm = "group:2"});
  CHECK(layers(groups) == "Linear(3 -> 6) GroupNorm(2 groups of 3) ReLU Linear(6 -> 4) GroupNorm(2 groups of 2) ReLU Linear(4 -> 2)");
  nn::Sequential partial = nn::MLP({.sizes = {3, 6, 2}, .norm = "prms:0.25"});
  CHECK(layers(partial) == "Linear(3 -> 6) RMSNorm(6, partial 0.25) ReLU Linear(6 -> 2)");
  // Weight norm is in the layers that a norm would follow.
  nn::Sequential weight = nn::MLP({.sizes = {3, 6, 2}, .norm = "weight"});
  CHECK(layers(weight) == "Linear(3 -> 6, weight norm) ReLU Linear(6 -> 2)");
  CHECK(names(init(weight, 1).state_dict()) == "0.weight_g 0.weight_v 0.bias 2.weight 2.bias");
  nn::Sequential both = nn::MLP({.sizes = {3, 6, 2}, .norm = "weight+meanbatch", .norm_output = true, .bias = false});
  CHECK(layers(both) ==
        "Linear(3 -> 6, weight norm, no bias) BatchNorm1d(6, mean only) ReLU Linear(6 -> 2, weight norm, no bias) BatchNorm1d(2, mean only)");
  nn::Sequential linear = on_device(nn::MLP({.sizes = {3, 2}, .norm = "layer", .init = "constant:2", .bias_init = "ones"}));
  CHECK(layers(linear) == "Linear(3 -> 2)");
  check_close(linear(ones({1, 3})), {7, 7}, exact);
  // eps reaches the norm: [1, -1] / sqrt(1 + 3), over the row or, with the same values in columns, over the batch.
  for (const char* norm : {"layer", "batch"}) {
    nn::Sequential eps = nn::MLP({.sizes = {2, 2}, .norm = norm, .norm_output = true, .init = "orthogonal", .bias_init = "zeros", .eps = 3});
    init(eps, 1);
    eps.at<nn::Linear>(0).weight.set(tensor<float>({1, 0, 0, 1}, {2, 2}));
    check_close(eps(tensor<float>({1, -1, -1, 1}, {2, 2})), {0.5, -0.5, -0.5, 0.5});
  }
}

TEST_CASE("MLP refuses bad options with one line") {
  CHECK_THROWS_AS(nn::MLP({.sizes = {3}}), InputError);
  CHECK_THROWS_WITH(nn::MLP({.sizes = {3}}), "[mlp] sizes: expected at least an input and an output size, got 1");
  CHECK_THROWS_WITH(nn::MLP({.sizes = {3, 0, 2}}), "[mlp] sizes: expected sizes >= 1, got [3, 0, 2]");
  CHECK_THROWS_WITH(nn::MLP({.sizes = {3, 2}, .activation = "swish"}),
                    "[mlp] unknown activation 'swish'; expected one of relu, tanh, sigmoid, gelu, silu, leaky_relu");
  CHECK_THROWS_WITH(nn::MLP({.sizes = {3, 2}, .init = "kaiming"}), contains("[init] unknown 'kaiming'"));
  CHECK_THROWS_WITH(nn::MLP({.sizes = {3, 2}, .bias_init = "he_normal"}), contains("[init] 'he_normal' needs a weight of rank >= 2"));
  CHECK_THROWS_AS(nn::MLP({.sizes = {3, 8, 2}, .norm = "instance"}), InputError);
  CHECK_THROWS_WITH(nn::MLP({.sizes = {3, 8, 2}, .norm = "instance"}),
                    "[mlp] norm: 'instance' needs an axis after the channels, as in [N, C, L], got [N, 8]; expected one of none, layer, batch, "
                    "meanbatch, group:4, rms, prms:0.0625, weight, weight+meanbatch");
  CHECK_THROWS_WITH(
      nn::MLP({.sizes = {3, 100, 2}, .norm = "group:8"}),
      contains("[mlp] norm: 'group:8' does not divide 100 features into equal groups; expected one of none, layer") && contains("group:5,"));
  CHECK_THROWS_WITH(nn::MLP({.sizes = {3, 8, 2}, .norm = "group:2", .norm_output = true}),
                    contains("'group:2' makes groups of one value out of 2 features"));
  CHECK_THROWS_WITH(nn::MLP({.sizes = {3, 2}, .dropout = 1.5}), contains("[mlp] dropout: expected a probability in [0, 1], got 1.5"));
}

TEST_CASE("every norm and activation builds, trains and reduces the loss") {
  for (const std::string& norm : mlp_norms())
    for (const char* activation : {"relu", "tanh", "sigmoid", "gelu", "silu", "leaky_relu"}) {
      INFO(norm << " " << activation);
      nn::Sequential model = nn::MLP({.sizes = {8, 16, 3}, .norm = norm, .activation = activation});
      init(model, 1);
      const std::vector<double> losses = train(model, 60);
      CHECK(losses.back() < 0.7 * losses.front());
    }
}

TEST_CASE("an MLP's gradients in f64 match central differences") {
  for (const std::string& norm : mlp_norms())
    for (const bool after : {false, true}) {
      INFO(norm << (after ? " after the activation" : ""));
      // Batch norm subtracts what a bias right before it adds: that bias would have no gradient.
      nn::Sequential model = nn::MLP({.sizes = {3, 6, 8, 6},
                                      .norm = norm,
                                      .norm_output = !after,
                                      .norm_after_activation = after,
                                      .activation = "tanh",
                                      .bias = after || !nn::NormSpec(norm).couples_batch()});
      init(model, 2);
      model.cast(DType::f64);
      for (const auto& [path, parameter] : model.named_parameters())
        if (parameter->shape().rank() == 1) parameter->set(normal(parameter->shape(), path.size() + 10, DType::f64, 0.5));
      check_module_gradients(model, normal({6, 3}, 1, DType::f64));
    }
}

TEST_CASE("two models trained in two threads give what each gives alone") {
  nn::Sequential layer = nn::MLP({.sizes = {8, 16, 3}, .norm = "layer", .dropout = 0.1}), batch = nn::MLP({.sizes = {8, 16, 3}, .norm = "batch"});
  init(layer, 1);
  init(batch, 2);
  nn::Sequential layer_copy(layer), batch_copy(batch);
  const std::vector<double> layer_alone = train(layer, 20), batch_alone = train(batch, 20);
  std::vector<double> layer_beside, batch_beside;
  std::thread one([&] { layer_beside = train(layer_copy, 20); });
  std::thread two([&] { batch_beside = train(batch_copy, 20); });
  one.join();
  two.join();
  CHECK(layer_beside == layer_alone);
  CHECK(batch_beside == batch_alone);
  CHECK(same_state(snapshot(layer), snapshot(layer_copy)));
}

TEST_CASE("five Adam steps give PyTorch's losses, gradients, state and evaluation") {
  for (const std::string& norm : mlp_norms())
    for (const DType dtype : {DType::f64, DType::f32}) {
      INFO(norm << " " << to_string(dtype));
      // Adam divides by the root of squared gradients, so where these are near 0, rounding of f32 is magnified.
      const double tolerance = dtype == DType::f64 ? 1e-9 : 5e-4;
      std::string file = "mlp_" + norm;
      std::replace(file.begin(), file.end(), ':', '_');
      const Golden golden(file);
      nn::Sequential model = on_device(nn::MLP({.sizes = {10, 16, 12, 4}, .norm = norm, .eps = 1e-5}));
      nn::StateDict before;
      for (const auto& [name, value] : golden.below("before.")) before.emplace_back(name, value);
      model.load_state_dict(before);
      model.cast(dtype);
      model.load_state_dict(before);  // in full precision
      optim::Adam adam(model.parameters(), {.lr = golden.number("lr")});
      const Tensor x = golden("x", dtype), labels = golden("labels");
      const int64_t batch = x.size(1), width = x.size(2);
      const auto batch_at = [&](int64_t step) {
        const std::vector<double> all = values(x);
        return tensor(std::vector<double>(all.begin() + step * batch * width, all.begin() + (step + 1) * batch * width), {batch, width}).cast(dtype);
      };
      std::vector<double> losses;
      for (int64_t step = 0; step < x.size(0); ++step) {
        const auto all = labels.to_vector<int64_t>();
        const Tensor loss =
            cross_entropy(model(batch_at(step)), tensor(std::vector<int64_t>(all.begin() + step * batch, all.begin() + (step + 1) * batch), {batch}));
        losses.push_back(loss.item());
        adam.zero_grad();
        loss.backward();
        if (step == 0)
          for (const auto& [path, parameter] : model.named_parameters()) check_close(parameter->grad(), golden("grad." + path), tolerance);
        adam.step();
      }
      check_close(tensor(losses, {static_cast<int64_t>(losses.size())}), golden("losses"), tolerance);
      // In f32 the gradient of a bias before a batch norm, zero but for rounding, is blown up by Adam to steps of its own.
      if (nn::NormSpec(norm).couples_batch() && dtype == DType::f32) continue;
      for (const auto& [name, value] : model.state_dict()) {
        INFO(name);
        check_close(value, golden("after." + name), tolerance);
      }
      model.eval();
      check_close(model(batch_at(0)), golden("eval_logits"), tolerance);
    }
}
