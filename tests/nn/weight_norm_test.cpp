#include <lamina/nn/weight_norm.h>

#include <cmath>

#include <lamina/nn/layers.h>
#include <lamina/nn/mlp.h>
#include <lamina/nn/rnn.h>
#include <lamina/nn/sequential.h>
#include <lamina/ops/elementwise.h>
#include <lamina/ops/reduce.h>
#include <lamina/optim/optimizer.h>

#include "nn/support.h"
#include "support/catch.h"
#include "support/random.h"

using namespace lamina;
using namespace lamina::test;

namespace {

void check_standard(const Tensor& t) {
  check_close(mean(t, {0}), std::vector<double>(static_cast<size_t>(t.size(1)), 0.0), f32_sum);
  check_close(var(t, {0}, 0), std::vector<double>(static_cast<size_t>(t.size(1)), 1.0), f32_sum);
}

}  // namespace

TEST_CASE("A21: Linear with weight norm: PyTorch's names; at first the weight is v") {
  nn::Linear layer(2, 2, {.weight_norm = true});
  CHECK(layer.describe() == "Linear(2 -> 2, weight norm)");
  CHECK_THROWS_WITH(layer(ones({1, 2})), contains("[parameter] used before init(seed)"));
  init(layer, 1);
  CHECK(names(layer.state_dict()) == "weight_g weight_v bias");
  CHECK(layer.weight_norm.g.shape() == Shape{2, 1});
  const auto v = values(layer.weight_norm.v), g = values(layer.weight_norm.g);
  CHECK(g[0] == Approx(std::hypot(v[0], v[1])).epsilon(1e-6));
  CHECK(g[1] == Approx(std::hypot(v[2], v[3])).epsilon(1e-6));
  check_close(layer.weight_norm.value(), v);

  layer.load_state_dict(
      {{"weight_v", tensor<float>({1, 2, 3, 4}, {2, 2})}, {"weight_g", tensor<float>({5, 6}, {2, 1})}, {"bias", tensor<float>({0, 100}, {2})}});
  check_close(layer.weight_norm.value(), {2.236068, 4.472136, 3.6, 4.8}, six_digits);
  check_close(layer.weight_norm.direction(), {0.4472136, 0.8944272, 0.6, 0.8}, six_digits);
  check_close(layer(ones({1, 2})), {6.708204, 108.4}, six_digits);

  // A12: without inputs there is nothing to learn, and nothing breaks.
  nn::Linear empty(0, 3, {.weight_norm = true});
  init(empty, 1);
  const Tensor y = empty(zeros({2, 0}));
  y.backward(ones({2, 3}));
  check_close(empty.weight_norm.g.grad(), {0, 0, 0}, exact);
  CHECK_THROWS_WITH(nn::WeightNorm(Shape{}, nn::init::ones()), contains("[weight_norm] expected a weight [out, ...], got a scalar"));
}

TEST_CASE("weight norm: the names that PyTorch 2 gives to g and v load too") {
  struct : nn::Module {
    nn::Linear linear{2, 2, {.bias = false, .weight_norm = true}};
    nn::LSTM lstm{{.input = 2, .hidden = 1, .norm = "weight", .bias = false}};
    void members(nn::Visitor& v) override {
      v("0", linear);
      v("1", lstm);
    }
  } model;
  init(model, 1);
  const nn::StateDict here = snapshot(model);
  nn::StateDict state;
  for (const auto& [name, value] : here) {  // "0.weight_g" is "0.parametrizations.weight.original0" there
    const std::string owner = name.substr(0, 2), weight = name.substr(2, name.size() - 4);
    state.emplace_back(owner + "parametrizations." + weight + (name.ends_with("_g") ? ".original0" : ".original1"), value + 1.0);
  }
  CHECK(names(state) ==
        "0.parametrizations.weight.original0 0.parametrizations.weight.original1 1.parametrizations.weight_ih_l0.original0 "
        "1.parametrizations.weight_ih_l0.original1 1.parametrizations.weight_hh_l0.original0 1.parametrizations.weight_hh_l0.original1");
  model.load_state_dict(state);
  const nn::StateDict loaded = snapshot(model);
  for (size_t i = 0; i < here.size(); ++i) CHECK(same_bits(loaded[i].second, here[i].second + 1.0));

  state.push_back(here[0]);
  CHECK_THROWS_WITH(model.load_state_dict(state), contains("[load_state_dict] unexpected: 0.parametrizations.weight.original0"));
  state.pop_back();
  state[1].first = "0.parametrizations.weight.original2";
  CHECK_THROWS_WITH(model.load_state_dict(state), contains("missing: 0.weight_v; unexpected: 0.parametrizations.weight.original2"));
}

TEST_CASE("Linear with weight norm: gradients, copies, training") {
  nn::Linear layer(4, 3, {.weight_norm = true});
  init(layer, 2);
  layer.cast(DType::f64);
  check_module_gradients(layer, normal({5, 4}, 1, DType::f64));

  nn::Sequential model = nn::MLP({.sizes = {8, 16, 3}, .norm = "weight"});
  init(model, 1);
  nn::Sequential copy(model);
  const Tensor x = normal({16, 8}, 5);
  CHECK(same_bits(copy(x), model(x)));
  // SGD moves v at a right angle to itself, so that its rows only grow.
  auto& first = model.at<nn::Linear>(0).weight_norm;
  const auto before = values(norm(first.v, {1}));
  optim::SGD sgd(model.parameters(), {.lr = 0.1});
  for (int step = 0; step < 5; ++step) {
    sgd.zero_grad();
    const Tensor y = model(x);
    mean(y * y).backward();
    sgd.step();
  }
  const auto after = values(norm(first.v, {1}));
  for (size_t i = 0; i < 16; ++i) CHECK(after[i] >= before[i] * (1 - 1e-6));
  CHECK(max_difference(copy(x), model(x)) > 1e-3);
}

TEST_CASE("data-dependent initialisation: every normalised layer's outputs have mean 0 and deviation 1") {
  nn::Sequential model(nn::Linear(6, 5, {.weight_norm = true}), nn::Tanh(), nn::Dropout(0.5), nn::Linear(5, 4, {.weight_norm = true}),
                       nn::Linear(4, 3));
  init(model, 3);
  const Tensor x = normal({64, 6}, 1, DType::f32, 2, 3), rest = model.at<nn::Linear>(4).weight.value().clone();
  const Tensor v = model.at<nn::Linear>(0).weight_norm.v.value().clone();
  nn::initialise_weight_norms(model, [&] { CHECK_FALSE(model(x).requires_grad()); });
  CHECK(model.at<nn::Dropout>(2).training());
  CHECK(same_bits(model.at<nn::Linear>(0).weight_norm.v.value(), v));
  CHECK(same_bits(model.at<nn::Linear>(4).weight.value(), rest));
  const Tensor a = model.at<nn::Linear>(0)(x);
  check_standard(a);
  check_standard(model.at<nn::Linear>(3)(tanh(a)));
  // Only that one pass.
  const Tensor g = model.at<nn::Linear>(0).weight_norm.g.value().clone();
  model.eval();
  model(x * 10.0);
  CHECK(same_bits(model.at<nn::Linear>(0).weight_norm.g.value(), g));
}

TEST_CASE("data-dependent initialisation: worked values, units without spread, no bias, one case") {
  nn::Linear layer(2, 3, {.weight_norm = true});
  init(layer, 1);
  // Directions [1, 0], [0, 1], [0.6, 0.8]; t over the two cases: 1, 5; 2, 2; 2.2, 4.6.
  layer.weight_norm.v.set(tensor<float>({3, 0, 0, 4, 3, 4}, {3, 2}));
  layer.weight_norm.g.set(tensor<float>({7, 7, 7}, {3, 1}));
  const Tensor x = tensor<float>({1, 2, 5, 2}, {2, 2});
  nn::initialise_weight_norms(layer, [&] { layer(x); });
  check_close(layer.weight_norm.g, {0.5, 7, 1 / 1.2}, f32_rounding);
  check_close(layer.bias, {-1.5, -14, -3.4 / 1.2}, f32_rounding);
  check_close(layer(x), {-1, 0, -1, 1, 0, 1}, f32_rounding);

  nn::Linear bare(2, 3, {.bias = false, .weight_norm = true});
  init(bare, 1);
  nn::initialise_weight_norms(bare, [&] { bare(normal({16, 2}, 1)); });
  check_close(var(bare(normal({16, 2}, 1)), {0}, 0), {1, 1, 1}, f32_sum);

  const auto one_case = [&] { nn::initialise_weight_norms(layer, [&] { layer(ones({1, 2})); }); };
  CHECK_THROWS_WITH(one_case(), contains("[weight_norm] data-dependent initialisation: expected two or more values per unit, got [1, 3]"));
  CHECK_FALSE(layer.weight_norm.awaits_data());

  // With mean-only batch norm after it, whose running mean is left as it was.
  nn::Sequential model = nn::MLP({.sizes = {6, 8, 2}, .norm = "weight+meanbatch", .bias = false});
  init(model, 1);
  const Tensor data = normal({32, 6}, 2, DType::f32, 1, 2);
  nn::initialise_weight_norms(model, [&] { model(data); });
  auto& batch = model.at<nn::BatchNorm1d>(1);
  check_close(batch.running_mean.tensor(), std::vector<double>(8, 0.0), exact);
  check_standard(batch(model.at<nn::Linear>(0)(data)));
}
