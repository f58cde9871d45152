// RMS, group and instance norm, batch norm of images, mean-only batch norm; normalisers by name.
#include <lamina/nn/norm.h>

#include <cmath>

#include <lamina/nn/layers.h>
#include <lamina/nn/sequential.h>
#include <lamina/ops/elementwise.h>
#include <lamina/ops/reduce.h>

#include "nn/support.h"
#include "support/catch.h"
#include "support/random.h"

using namespace lamina;
using namespace lamina::test;

namespace {

std::string describe(const nn::NormLayer& layer) {
  return std::visit(
      [](const auto& l) -> std::string {
        if constexpr (std::is_base_of_v<nn::Module, std::decay_t<decltype(l)>>)
          return l.describe();
        else
          return "-";
      },
      layer);
}

std::string made(const char* name, const nn::NormPlace& place) { return describe(nn::make_norm(name, place)); }

}  // namespace

TEST_CASE("RMSNorm: PyTorch's defaults, partial, gain and bias") {
  auto norm = on_device(nn::RMSNorm(4));
  CHECK(names(norm.state_dict()) == "weight");
  CHECK(norm.describe() == "RMSNorm(4)");
  norm.weight.set(tensor<float>({1, 2, 3, 4}, {4}));
  check_close(norm(tensor<float>({2, -2, 2, 2}, {1, 4})), {1, -2, 3, 4});
  // eps is the machine epsilon unless given.
  check_close(norm(tensor<float>({1e-4f, 0, 0, 0}, {1, 4})), {1e-4 / std::sqrt(0.25e-8 + 1.1920929e-7), 0, 0, 0});
  auto partial = on_device(nn::RMSNorm(Shape{2, 2}, {.eps = 0.0, .partial = 0.3, .gain = false, .bias = true}));  // the first two of four
  CHECK(names(partial.state_dict()) == "bias");
  CHECK(partial.describe() == "RMSNorm([2, 2], partial 0.3, no gain, bias)");
  check_close(partial(tensor<float>({3, 3, 6, 9}, {1, 2, 2})), {1, 1, 2, 3});
  CHECK_THROWS_WITH(nn::RMSNorm(4, {.partial = 0}), contains("[rms_norm] partial: expected a value in (0, 1], got 0"));
  CHECK_THROWS_WITH(nn::RMSNorm(4, {.eps = -1}), contains("[rms_norm] eps: expected a value >= 0, got -1"));
  CHECK_THROWS_WITH(norm(zeros({2, 5})), contains("[rms_norm]") && contains("[2, 5]"));
}

TEST_CASE("GroupNorm: layouts, names, errors") {
  auto norm = on_device(nn::GroupNorm(2, 4, {.eps = 0}));
  CHECK(names(norm.state_dict()) == "weight bias");
  CHECK(norm.describe() == "GroupNorm(2 groups of 2)");
  norm.weight.set(tensor<float>({2, 3, 4, 5}, {4}));
  norm.bias.set(tensor<float>({0, 10, 20, 30}, {4}));
  check_close(norm(tensor<float>({1, 5, 9, 11}, {1, 4})), {-2, 13, 16, 35});
  CHECK(norm(normal({2, 4, 3, 5}, 1)).shape() == Shape{2, 4, 3, 5});
  CHECK(norm(zeros({0, 4, 3})).shape() == Shape{0, 4, 3});
  auto plain = on_device(nn::GroupNorm(1, 4, {.affine = false}));
  CHECK(plain.state_dict().empty());
  CHECK(plain.describe() == "GroupNorm(1 groups of 4, not affine)");
  CHECK_THROWS_WITH(norm(zeros({2, 3})), contains("[group_norm] x: expected [N, 4] or [N, 4, ...], got [2, 3] (in GroupNorm(2 groups of 2))"));
  CHECK_THROWS_WITH(norm(zeros({4})), contains("got [4]"));
  CHECK_THROWS_WITH(nn::GroupNorm(3, 4), contains("[group_norm] groups: expected a number that divides the 4 channels, got 3"));
  CHECK_THROWS_WITH(nn::GroupNorm(0, 4), contains("got 0"));
  CHECK_THROWS_WITH(nn::GroupNorm(1, -1), contains("channel count >= 0"));
}

TEST_CASE("A13: InstanceNorm: PyTorch's defaults, one element, wrong rank, evaluation with and without running statistics") {
  auto norm = on_device(nn::InstanceNorm1d(3));
  CHECK(norm.state_dict().empty());  // neither affine nor tracking
  CHECK(norm.describe() == "InstanceNorm1d(3)");
  CHECK_THROWS_WITH(norm(ones({2, 3, 1})),
                    contains("[instance_norm] x: one value per instance has no variance: got [2, 3, 1] (in InstanceNorm1d(3))"));
  CHECK_THROWS_WITH(norm(ones({2, 3})), contains("[instance_norm] x: expected [N, 3, L], got [2, 3] (in InstanceNorm1d(3))"));
  CHECK_THROWS_WITH(norm(ones({2, 3, 4, 4})), contains("got [2, 3, 4, 4]"));
  CHECK(norm(zeros({0, 3, 1})).shape() == Shape{0, 3, 1});

  const Tensor x = tensor<float>({1, 3}, {1, 1, 2});
  auto one = on_device(nn::InstanceNorm1d(1)), tracked = on_device(nn::InstanceNorm1d(1, {.affine = true, .track_running_stats = true}));
  CHECK(names(tracked.state_dict()) == "weight bias running_mean running_var num_batches_tracked");
  CHECK(tracked.describe() == "InstanceNorm1d(1, affine, running statistics)");
  one.eval();
  tracked.eval();
  check_close(one(x), {-0.999995, 0.999995});
  check_close(tracked(x), {0.999995, 2.999985});
  CHECK(tracked(ones({2, 1, 1})).shape() == Shape{2, 1, 1});
  tracked.train();
  check_close(tracked(x), {-0.999995, 0.999995});
  check_close(tracked.running_mean.tensor(), {0.2});
  check_close(tracked.running_var.tensor(), {1.1});

  auto images = on_device(nn::InstanceNorm2d(2, {.affine = true}));
  CHECK(images.describe() == "InstanceNorm2d(2, affine)");
  CHECK(images(normal({3, 2, 4, 5}, 1)).shape() == Shape{3, 2, 4, 5});
  CHECK_THROWS_WITH(images(ones({3, 2, 4})), contains("[instance_norm] x: expected [N, 2, H, W], got [3, 2, 4]"));
  CHECK_THROWS_WITH(images(ones({3, 2, 1, 1})), contains("one value per instance"));
  CHECK_THROWS_WITH(nn::InstanceNorm2d(2, {.momentum = 2}), contains("[instance_norm] momentum: expected a value in [0, 1], got 2"));
}

TEST_CASE("BatchNorm2d normalises channels of images as BatchNorm1d does those of sequences") {
  auto images = on_device(nn::BatchNorm2d(3));
  auto sequences = on_device(nn::BatchNorm1d(3));
  CHECK(names(images.state_dict()) == "weight bias running_mean running_var num_batches_tracked");
  const Tensor x = normal({4, 3, 2, 5}, 1, DType::f32, 2), flat = tensor(x.to_vector<float>(), {4, 3, 10});
  check_close(images(x), values(sequences(flat)), exact);
  check_close(images.running_var.tensor(), values(sequences.running_var.tensor()), exact);
  CHECK(images.num_batches_tracked.tensor().item() == 1);
  CHECK(images.describe() == "BatchNorm2d(3)");
  CHECK_THROWS_WITH(images(flat), contains("[batch_norm] x: expected [N, 3, H, W], got [4, 3, 10] (in BatchNorm2d(3))"));
  CHECK_THROWS_WITH(images(ones({1, 3, 1, 1})), contains("one value per channel has no variance"));
}

TEST_CASE("mean-only BatchNorm: a bias and a running mean, nothing else") {
  auto norm = on_device(nn::BatchNorm1d(2, {.momentum = 0.5, .mean_only = true}));
  CHECK(names(norm.state_dict()) == "bias running_mean num_batches_tracked");
  CHECK(norm.describe() == "BatchNorm1d(2, mean only)");
  norm.bias.set(tensor<float>({100, 0}, {2}));
  check_close(norm(tensor<float>({1, 10, 5, 12}, {2, 2})), {98, -1, 102, 1});
  check_close(norm.running_mean.tensor(), {1.5, 5.5});
  norm.eval();
  check_close(norm(tensor<float>({1, 10}, {1, 2})), {99.5, 4.5});
  norm.train();
  CHECK_THROWS_WITH(norm(ones({1, 2})), contains("[batch_norm] x: one value per channel has no mean but itself"));
  // Population statistics of a norm without variances.
  nn::Sequential model(norm);
  nn::recompute_population_statistics(model, [&] {
    model(tensor<float>({0, 0, 2, 2}, {2, 2}));
    model(tensor<float>({4, 4, 10, 10}, {2, 2}));
  });
  check_close(model.at<nn::BatchNorm1d>(0).running_mean.tensor(), {4, 4});
  CHECK(model.at<nn::BatchNorm1d>(0).num_batches_tracked.tensor().item() == 1);
}

TEST_CASE("G08: normalisers by name: one parser, one list") {
  CHECK_THROWS_AS(nn::NormSpec("foo"), InputError);
  CHECK_THROWS_WITH(nn::NormSpec("foo"),
                    "[norm] unknown 'foo'; expected one of none, layer, batch, meanbatch, instance, group:8, rms, prms:0.0625, weight, "
                    "weight+meanbatch, layer-cell, layer-carry, layer-gates");
  for (const char* bad : {"group:", "group:0", "group:-2", "group:2.5", "group:8x", "group: 8"})
    CHECK_THROWS_WITH(nn::NormSpec(bad), std::string("[norm] '") + bad + "': expected group:N with a whole number N of groups, 1 or more");
  for (const char* bad : {"prms:", "prms:0", "prms:1.5", "prms:nan", "prms:-0.1", "prms:half"})
    CHECK_THROWS_WITH(nn::NormSpec(bad),
                      std::string("[norm] '") + bad + "': expected prms:P with the measured part P of a row, above 0 and at most 1");
  for (const char* bad : {"", "BatchNorm", "group", "prms", "rms:0.5", "weight+", "weight+layer", "+meanbatch", "layer ", "Layer", "layer-",
                          "layer-c", "layer-cells", "layer-carry ", "weight+layer-cell"}) {
    INFO("'" << bad << "'");
    CHECK_THROWS_WITH(nn::NormSpec(bad), contains(std::string("[norm] unknown '") + bad + "'; expected one of none"));
  }
  for (const std::string& name : nn::NormSpec::names()) CHECK(nn::NormSpec(name).str() == name);
  CHECK(nn::NormSpec("group:32").groups == 32);
  CHECK(nn::NormSpec("prms:0.125").partial == 0.125);
  CHECK(nn::NormSpec("prms:1") == nn::NormSpec("rms"));
  CHECK(nn::NormSpec() == nn::NormSpec("none"));
  CHECK((nn::NormSpec("layer").variant == nn::NormSpec::Variant::standard && nn::NormSpec("layer-gates").variant == nn::NormSpec::Variant::gates));
  CHECK((nn::NormSpec("layer-cell").kind == nn::NormSpec::Kind::layer && nn::NormSpec("layer-cell") != nn::NormSpec("layer")));
  CHECK(nn::NormSpec("weight").weight);
  CHECK((nn::NormSpec("weight+meanbatch").weight && nn::NormSpec("weight+meanbatch").mean_only));
  CHECK((nn::NormSpec("meanbatch").couples_batch() && nn::NormSpec("batch").couples_batch() && !nn::NormSpec("weight").couples_batch() &&
         !nn::NormSpec("instance").couples_batch()));
}

TEST_CASE("make_norm: what each name is at each place") {
  const nn::NormPlace row{.features = 16}, sequence{.features = 16, .space = 1}, image{.features = 16, .space = 2};
  CHECK(made("none", row) == "-");
  CHECK(made("weight", image) == "-");
  CHECK(made("layer", row) == "LayerNorm(16)");
  CHECK(made("layer", sequence) == "GroupNorm(1 groups of 16)");
  CHECK(made("batch", row) == "BatchNorm1d(16)");
  CHECK(made("batch", sequence) == "BatchNorm1d(16)");
  CHECK(made("batch", image) == "BatchNorm2d(16)");
  CHECK(made("weight+meanbatch", image) == "BatchNorm2d(16, mean only)");
  CHECK(made("instance", sequence) == "InstanceNorm1d(16, affine)");
  CHECK(made("instance", image) == "InstanceNorm2d(16, affine)");
  CHECK(made("group:8", image) == "GroupNorm(8 groups of 2)");
  CHECK(made("group:16", image) == "GroupNorm(16 groups of 1)");
  CHECK(made("rms", row) == "RMSNorm(16)");
  CHECK(made("prms:0.0625", row) == "RMSNorm(16, partial 0.0625)");
  // Options arrive.
  const nn::NormLayer batch = nn::make_norm("batch", row, {.eps = 3, .batch_norm = {.track_running_stats = false, .mean_only = true}});
  CHECK(describe(batch) == "BatchNorm1d(16, no running statistics)");
  for (const char* name : {"layer", "batch", "group:1", "rms"}) {
    auto norm = on_device(nn::Norm(name, {.features = 2}, {.eps = 3}));
    INFO(name);
    check_close(norm(tensor<float>({1, -1, -1, 1}, {2, 2})), {0.5, -0.5, -0.5, 0.5});
  }
  // What makes no sense is refused in one line that lists what does.
  CHECK_THROWS_AS(nn::make_norm("instance", row), InputError);
  CHECK_THROWS_WITH(nn::make_norm("instance", row),
                    "[norm] norm: 'instance' needs an axis after the channels, as in [N, C, L], got [N, 16]; expected one "
                    "of none, layer, batch, meanbatch, group:8, rms, prms:0.0625, weight, weight+meanbatch");
  CHECK_THROWS_WITH(nn::make_norm("prms:0.5", {.builder = "conv", .features = 16, .space = 2}),
                    "[conv] norm: 'prms:0.5' needs the features in the last axis, got [N, C, ...]; expected one of none, layer, batch, meanbatch, "
                    "instance, group:8, weight, weight+meanbatch");
  CHECK_THROWS_WITH(nn::make_norm("group:8", {.features = 100}),
                    contains("'group:8' does not divide 100 features into equal groups") && contains("group:5"));
  CHECK_THROWS_WITH(nn::make_norm("group:16", row), contains("'group:16' makes groups of one value out of 16 features"));
  // Variants of recurrent layers, anywhere else.
  for (const char* name : {"layer-cell", "layer-carry", "layer-gates"})
    for (const nn::NormPlace& place : {row, sequence, image})
      CHECK_THROWS_WITH(nn::make_norm(name, place),
                        contains(std::string("[norm] norm: '") + name + "' is of recurrent layers; expected one of none, layer, batch, meanbatch"));
  CHECK_THROWS_AS(nn::make_norm("layer-cell", row), InputError);
  CHECK_THROWS_WITH(nn::Norm("layer-gates", {.builder = "mlp", .features = 16}), contains("[mlp] norm: 'layer-gates' is of recurrent layers"));
  // Seven features have no groups but themselves.
  CHECK(nn::norm_names({.features = 7}) ==
        std::vector<std::string>{"none", "layer", "batch", "meanbatch", "group:1", "rms", "prms:0.0625", "weight", "weight+meanbatch"});
}

TEST_CASE("Norm: any normaliser as a member, under its own name, in the mode of its owner") {
  struct Block : nn::Module {
    nn::Linear linear{4, 6};
    nn::Norm norm1, norm2{"batch", {.features = 6}};
    void members(nn::Visitor& v) override {
      v("linear", linear);
      v("norm1", norm1);
      v("norm2", norm2);
    }
    Tensor operator()(const Tensor& x) { return norm2(norm1(linear(x))); }
  };
  Block block;
  init(block, 1);
  CHECK(names(block.state_dict()) ==
        "linear.weight linear.bias norm2.weight norm2.bias norm2.running_mean norm2.running_var norm2.num_batches_tracked");
  CHECK(block.norm1.describe() == "no norm");
  CHECK(block.norm2.describe() == "BatchNorm1d(6)");
  const Tensor x = normal({8, 4}, 1);
  block(x);
  auto& batch = std::get<nn::BatchNorm1d>(block.norm2.layer);
  CHECK(batch.num_batches_tracked.tensor().item() == 1);
  block.eval();
  const Tensor before = block(x);
  CHECK(batch.num_batches_tracked.tensor().item() == 1);
  CHECK(same_bits(block(tensor(x.to_vector<float>(), {8, 4})), before));
  nn::recompute_population_statistics(block, [&] { block(x); });
  CHECK(max_difference(block(x), before) > 0.01);  // now the batch's own
  check_close(mean(block(x), {0}), std::vector<double>(6, 0.0), f32_rounding);
  CHECK(batch.num_batches_tracked.tensor().item() == 1);
  Block copy(block);
  CHECK(same_bits(copy(x), block(x)));
}
