// Common mistakes are told once, with the layer's place.

#include <lamina/autograd/graph.h>
#include <lamina/core/warning.h>
#include <lamina/nn/layers.h>
#include <lamina/nn/mlp.h>
#include <lamina/nn/norm.h>
#include <lamina/nn/sequential.h>
#include <lamina/nn/weight_norm.h>

#include "nn/support.h"
#include "support/catch.h"
#include "support/random.h"

using namespace lamina;
using namespace lamina::test;
using Texts = std::vector<std::string>;

namespace {

nn::Sequential batch_net() {
  nn::Sequential net(nn::Linear(3, 4, {.bias = false}), nn::BatchNorm1d(4), nn::ReLU(), nn::Linear(4, 2));
  init(net, 1);
  return net;
}

}  // namespace

TEST_CASE("A module knows its place below the one that init() or eval() was called on") {
  nn::Sequential net = batch_net();
  CHECK(net.path() == "");
  CHECK(net.title() == "Sequential");
  CHECK(net.at<nn::BatchNorm1d>(1).title() == "1 (BatchNorm1d(4))");
  nn::Sequential outer(nn::ReLU(), std::move(net));
  outer.eval();
  CHECK(outer.at<nn::Sequential>(1).at<nn::BatchNorm1d>(1).path() == "1.1");
  CHECK(nn::BatchNorm1d(4).title() == "BatchNorm1d(4)");
}

TEST_CASE("Warned of: evaluating a batch norm that never saw a training batch") {
  const CatchWarnings caught;
  const Texts expected{
      "[batch_norm] 1 (BatchNorm1d(4)): evaluated before it has seen a training batch: mean 0 and deviation 1 of its start normalise "
      "nothing"};
  const Tensor x = normal({5, 3}, 1);
  SECTION("never trained") {
    nn::Sequential net = batch_net();
    net.eval();
    net(x);
    net(x);
    CHECK(caught.texts() == expected);
  }
  SECTION("through Norm, of any kind") {
    const char* name = GENERATE("batch", "meanbatch");
    nn::Sequential net(nn::Linear(3, 4, {.bias = false}), nn::Norm(name, {.features = 4}));
    init(net, 1).eval();
    net(x);
    REQUIRE(caught.texts().size() == 1);
    CHECK_THAT(caught.texts()[0], contains("[batch_norm] 1 (BatchNorm1d(4") && contains("evaluated before"));
  }
  SECTION("trained, loaded, set by hand, or with statistics of the population: no warning") {
    nn::Sequential trained = batch_net();
    trained(x);
    trained.eval();
    trained(x);
    nn::Sequential loaded = batch_net();
    loaded.load_state_dict(trained.state_dict());
    loaded.eval();
    loaded(x);
    nn::Sequential by_hand = batch_net();
    by_hand.at<nn::BatchNorm1d>(1).running_var.tensor().fill_(2);
    by_hand.eval();
    by_hand(x);
    nn::Sequential population = batch_net();
    population.eval();
    nn::recompute_population_statistics(population, [&] { population(x); });
    population(x);
    auto untracked = on_device(nn::BatchNorm1d(3, {.track_running_stats = false}));
    untracked.eval();
    untracked(x);
    CHECK(caught.texts() == Texts{});
  }
}

TEST_CASE("Warned of: the statistics of training in an evaluation") {
  const CatchWarnings caught;
  const Tensor x = normal({5, 3}, 1);
  nn::Sequential net = batch_net();
  net(x);
  SECTION("eval() was forgotten") {
    const NoGrad guard;
    net(x);
    net(x);
    REQUIRE(caught.texts().size() == 1);
    CHECK_THAT(caught.texts()[0], contains("[batch_norm] 1 (BatchNorm1d(4)): in training mode while no gradients are recorded") &&
                                      contains("call eval() first (to collect statistics: recompute_population_statistics)"));
  }
  SECTION("eval() was forgotten after loading") {
    nn::Sequential other(nn::Linear(3, 4, {.bias = false}), nn::BatchNorm1d(4), nn::ReLU(), nn::BatchNorm1d(4));
    nn::Sequential loaded = on_device(nn::Sequential(other));
    init(other, 1);
    loaded.load_state_dict(other.state_dict());
    const NoGrad guard;
    loaded(x);
    REQUIRE(caught.texts().size() == 2);
    CHECK_THAT(caught.texts()[0], contains("[batch_norm] 1 (BatchNorm1d(4)): in training mode"));
    CHECK_THAT(caught.texts()[1], contains("[batch_norm] 3 (BatchNorm1d(4)): in training mode"));
    auto& part = net.at<nn::BatchNorm1d>(1);
    part.load_state_dict(part.state_dict());
    net(x);
    REQUIRE(caught.texts().size() == 2);  // as named as the first time
  }
  SECTION("what is meant so: no warning") {
    nn::recompute_population_statistics(net, [&] { net(x); });
    nn::initialise_weight_norms(net, [&] { net(x); });
    auto untracked = on_device(nn::BatchNorm1d(3, {.track_running_stats = false}));
    auto layer = on_device(nn::LayerNorm(3));
    const NoGrad guard;
    untracked(x);
    layer(x);
    net.eval();
    net(x);
    CHECK(caught.texts() == Texts{});
  }
}

TEST_CASE("Warned of: normalising an axis of length 1") {
  const CatchWarnings caught;
  nn::Sequential net(nn::Linear(3, 1), nn::LayerNorm(1));
  init(net, 1);
  const Tensor x = normal({5, 3}, 1);
  check_close(net(x), {0, 0, 0, 0, 0}, exact);
  net(x);
  CHECK(caught.texts() == Texts{"[layer_norm] 1 (LayerNorm(1)): normalises one value alone, so it gives its bias for any input"});
  auto rms = on_device(nn::RMSNorm(Shape{1, 1}));
  check_close(rms(tensor<float>({-3, 5}, {2, 1, 1})), {-1, 1});
  REQUIRE(caught.texts().size() == 2);
  CHECK(caught.texts()[1] == "[rms_norm] RMSNorm([1, 1]): normalises one value alone, so it gives its gain, with the input's sign, for any input");
  on_device(nn::LayerNorm(2))(normal({5, 2}, 1));
  CHECK(caught.texts().size() == 2);
}

TEST_CASE("Warned of: a Linear bias that the batch norm after it makes do nothing") {
  const CatchWarnings caught;
  const Tensor x = normal({5, 3}, 1);
  SECTION("told once, and true") {
    nn::Sequential net(nn::Linear(3, 4), nn::BatchNorm1d(4), nn::ReLU(), nn::Linear(4, 2), nn::Norm("meanbatch", {.features = 2}));
    init(net, 1);
    (net(x) * normal({5, 2}, 2)).backward(normal({5, 2}, 3));
    net(x);
    REQUIRE(caught.texts().size() == 2);
    CHECK(caught.texts()[0] ==
          "[linear] 0 (Linear(3 -> 4)): its bias does nothing, since 1 (BatchNorm1d(4)) after it takes every mean off; leave it out: "
          "Linear(in, out, {.bias = false})");
    CHECK_THAT(caught.texts()[1], contains("[linear] 3 (Linear(4 -> 2)): its bias does nothing"));
    // What remains of the gradient is rounding.
    CHECK(norm_of(net.at<nn::Linear>(0).weight.grad()) > 0.1);
    CHECK(norm_of(net.at<nn::Linear>(0).bias.grad()) < f32_sum);
  }
  SECTION("where sequences are nested") {
    nn::Sequential net(nn::Sequential(nn::ReLU(), nn::Sequential(nn::Linear(3, 4))), nn::Sequential(nn::BatchNorm1d(4), nn::ReLU()));
    init(net, 1);
    net(x);
    REQUIRE(caught.texts().size() == 1);
    CHECK_THAT(caught.texts()[0], contains("[linear] 0.1.0 (Linear(3 -> 4)): its bias does nothing, since 1.0 (BatchNorm1d(4)) after it"));
  }
  SECTION("other biases: no warning") {
    nn::Sequential net(nn::Linear(3, 4), nn::LayerNorm(4), nn::Linear(4, 4), nn::ReLU(), nn::BatchNorm1d(4), nn::Linear(4, 4, {.bias = false}),
                       nn::BatchNorm1d(4));
    init(net, 1);
    net(x);
    // Of [N, C, L] with the features last, the channels that the norm takes means of are others.
    nn::Sequential sequence(nn::Linear(3, 4), nn::BatchNorm1d(2));
    init(sequence, 1);
    sequence(normal({5, 2, 3}, 1));
    nn::Sequential evaluated(nn::Linear(3, 4), nn::BatchNorm1d(4));
    init(evaluated, 1);
    evaluated.at<nn::BatchNorm1d>(1).running_mean.tensor().fill_(1);
    evaluated.eval();
    evaluated(x);
    // The papers' nets, whose biases are an option.
    nn::Sequential mlp = nn::MLP({.sizes = {3, 4, 2}, .norm = "batch"});
    init(mlp, 1);
    mlp(x);
    CHECK(caught.texts() == Texts{});
  }
}
