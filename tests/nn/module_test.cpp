#include <lamina/nn/module.h>

#include <lamina/nn/layers.h>
#include <lamina/nn/norm.h>
#include <lamina/nn/sequential.h>
#include <lamina/ops/loss.h>

#include "nn/support.h"
#include "support/catch.h"
#include "support/random.h"

using namespace lamina;
using namespace lamina::test;

namespace {

/// A language model in small: the output weight is the embedding's.
struct Tied : nn::Module {
  nn::Embedding embedding{6, 4};
  nn::Linear hidden{4, 4};
  nn::Linear output{4, 6, {.bias = false}};
  Tied() { output.weight.tie(embedding.weight); }
  Tied(const Tied&) = default;
  void members(nn::Visitor& v) override {
    v("embedding", embedding);
    v("hidden", hidden);
    v("output", output);
  }
  Tensor operator()(const Tensor& ids) { return output(relu(hidden(embedding(ids)))); }
};

/// Parameters and buffers of its own beside a module.
struct Mixed : nn::Module {
  nn::Parameter scale{{2}, nn::init::ones()};
  nn::Buffer seen{zeros({}, DType::i64)};
  nn::Linear linear{2, 2};
  nn::Parameter none;
  void members(nn::Visitor& v) override {
    v("scale", scale);
    v("seen", seen);
    v("linear", linear);
    v("none", none);
  }
};

std::string paths(const std::vector<nn::NamedParameter>& parameters) {
  std::string text;
  for (const auto& [path, parameter] : parameters) text += path + " ";
  return text;
}

}  // namespace

TEST_CASE("walks list members in order and skip absent ones") {
  Mixed mixed;
  CHECK(paths(mixed.named_parameters()) == "scale linear.weight linear.bias ");
  CHECK(mixed.named_buffers().size() == 1);
  CHECK(mixed.named_buffers()[0].path == "seen");
  const auto modules = mixed.modules();
  REQUIRE(modules.size() == 2);
  CHECK(modules[0].path == "");
  CHECK(modules[1].path == "linear");
  CHECK(mixed.parameter_count() == 8);

  Tied tied;
  CHECK(paths(tied.named_parameters()) == "embedding.weight hidden.weight hidden.bias ");
  CHECK(paths(tied.named_parameters(false)) == "embedding.weight hidden.weight hidden.bias output.weight ");
  CHECK(tied.parameters().size() == 3);
  CHECK(tied.parameter_count() == 6 * 4 + 4 * 4 + 4);
}

TEST_CASE("two members of one name are an error") {
  struct Twice : nn::Module {
    nn::Parameter a{{1}, nn::init::ones()}, b{{1}, nn::init::ones()};
    std::string second = "weight";
    void members(nn::Visitor& v) override {
      v("weight", a);
      v(second, b);
    }
  } twice;
  CHECK_THROWS_WITH(init(twice, 1), "[module] two members are called 'weight'");
  twice.second = "";
  CHECK_THROWS_WITH(twice.parameters(), contains("empty name"));
}

TEST_CASE("train and eval reach every module") {
  nn::Sequential model(nn::Linear(2, 2), nn::Sequential(nn::Dropout(0.5)));
  CHECK(model.training());
  model.eval();
  for (const auto& [path, module] : model.modules()) CHECK_FALSE(module->training());
  model.train();
  for (const auto& [path, module] : model.modules()) CHECK(module->training());
}

TEST_CASE("ties: one draw, one gradient, kept by clone and not by a copy") {
  Tied model;
  init(model, 2);
  // The gradient of the one tensor is the sum of those of both uses, which an untied copy has apart.
  Tied copy(model);
  CHECK_FALSE(copy.output.weight.tensor().is_same(copy.embedding.weight.tensor()));
  const Tensor ids = tensor<int64_t>({0, 3, 5}, {3}), labels = tensor<int64_t>({1, 2, 3}, {3});
  cross_entropy(model(ids), labels).backward();
  cross_entropy(copy(ids), labels).backward();
  CHECK(norm_of(copy.embedding.weight.grad()) > 0.01);
  CHECK(norm_of(copy.output.weight.grad()) > 0.01);
  check_close(model.output.weight.grad(), copy.embedding.weight.grad() + copy.output.weight.grad());
  model.zero_grad();
  CHECK_FALSE(model.output.weight.grad().defined());

  Tied tied = nn::clone(model);
  CHECK(tied.output.weight.tensor().is_same(tied.embedding.weight.tensor()));
  CHECK(tied.parameters().size() == 3);
  CHECK(same_state(snapshot(tied), snapshot(model)));
  tied.embedding.weight.tensor().fill_(0);
  CHECK(norm_of(model.embedding.weight.value()) > 0);
}

TEST_CASE("copies of a model are independent") {
  nn::Sequential model(nn::Linear(3, 4), nn::BatchNorm1d(4), nn::ReLU(), nn::Linear(4, 2));
  init(model, 5);
  nn::Sequential copy(model);
  const nn::StateDict before = snapshot(copy);
  CHECK(same_state(before, snapshot(model)));
  for (nn::Parameter* parameter : model.parameters()) parameter->tensor().fill_(9);
  model(normal({5, 3}, 1));
  CHECK(same_state(before, snapshot(copy)));
  copy = model;
  CHECK(same_state(snapshot(model), snapshot(copy)));
  CHECK_FALSE(copy.at<nn::Linear>(0).weight.value().is_same(model.at<nn::Linear>(0).weight.value()));
}

TEST_CASE("chains of chains are chains of two") {
  nn::Sequential inner(nn::Linear(3, 4), nn::ReLU());
  nn::Sequential model(inner, nn::Sequential(nn::Linear(4, 2)));
  CHECK(model.size() == 2);
  CHECK(model.named_parameters().back().path == "1.0.bias");
  const nn::Sequential copy(model);
  CHECK(copy.size() == 2);
  CHECK(nn::Sequential(inner).size() == 2);  // one chain alone is copied
}

TEST_CASE("frozen parameters get no gradient") {
  nn::Sequential model(nn::Linear(3, 4), nn::Tanh(), nn::Linear(4, 2));
  init(model, 1);
  model.at<nn::Linear>(0).weight.freeze();
  const Tensor y = model(normal({5, 3}, 2));
  y.backward(normal({5, 2}, 3));
  CHECK_FALSE(model.at<nn::Linear>(0).weight.grad().defined());
  CHECK(norm_of(model.at<nn::Linear>(0).bias.grad()) > 0);
  CHECK(norm_of(model.at<nn::Linear>(2).weight.grad()) > 0);
}

TEST_CASE("to and cast reach parameters and buffers, and optimisers' handles stay valid") {
  nn::Sequential model(nn::Linear(3, 4), nn::BatchNorm1d(4));
  init(model, 1);
  const Tensor handle = model.at<nn::Linear>(0).weight.value();
  model.cast(DType::f64);
  CHECK(handle.dtype() == DType::f64);
  CHECK(model.at<nn::BatchNorm1d>(1).running_var.tensor().dtype() == DType::f64);
  CHECK(model.at<nn::BatchNorm1d>(1).num_batches_tracked.tensor().dtype() == DType::i64);
  CHECK(model(normal({5, 3}, 2, DType::f64)).dtype() == DType::f64);
  model.to(test::device());
  CHECK_THROWS_WITH(model.cast(DType::i64), contains("[module] cast: expected f32 or f64"));
  model.cast(DType::f32);
  CHECK(model(normal({5, 3}, 2)).dtype() == DType::f32);
}

TEST_CASE("the summary is a table with totals") {
  nn::Sequential model(nn::Linear(784, 1000), nn::LayerNorm(1000), nn::ReLU(), nn::Linear(1000, 10, {.bias = false}));
  CHECK(model.summary() ==
        "path   layer                        parameters\n"
        "0      Linear(784 -> 1000)             785,000\n"
        "1      LayerNorm(1000)                   2,000\n"
        "2      ReLU                                  0\n"
        "3      Linear(1000 -> 10, no bias)      10,000\n"
        "total                                  797,000\n");
  model.at<nn::LayerNorm>(1).weight.freeze();
  CHECK_THAT(model.summary(), contains("of these frozen                   1,000\n"));
  CHECK_THAT(Tied().summary(), contains("output     Linear(4 -> 6, no bias)           0\n") && contains("44\n"));
  CHECK_THAT(Mixed().summary(), contains("(root)  Module                   2\nlinear  Linear(2 -> 2)           6\n"));
}
