#include <lamina/nn/gradcheck.h>

#include <lamina/autograd/graph.h>
#include <lamina/nn/layers.h>
#include <lamina/nn/norm.h>
#include <lamina/ops/elementwise.h>
#include <lamina/ops/reduce.h>

#include "nn/support.h"

using namespace lamina;
using namespace lamina::test;

namespace {

/// y = norm(x) * scale, whose gradient for scale is off by `factor`.
struct Scaled : nn::Module {
  explicit Scaled(double f) : factor(f) {}
  void members(nn::Visitor& v) override {
    v("norm", norm);
    v("scale", scale);
  }
  Tensor operator()(const Tensor& x) {
    const Tensor h = norm(x), &s = scale;
    Tensor y;
    {
      const NoGrad guard;
      y = h * s;
    }
    return autograd::record("scaled", {h, s}, y, autograd::save({h, s}), [f = factor](autograd::Backward& b) {
      b.give(0, b.dy() * b.saved(1));
      if (b.needs(1)) b.give(1, sum_to(b.dy() * b.saved(0), b.saved(1).shape()) * f);
    });
  }

  double factor;
  nn::LayerNorm norm{4};
  nn::Parameter scale{{4}, nn::init::normal(1)};
};

Scaled scaled(double factor) {
  Scaled layer(factor);
  layer.init(1);
  layer.cast(DType::f64);
  layer.to(device());
  return layer;
}

/// A language model without what lies between: the output weight is the embedding's.
struct Tied : nn::Module {
  Tied() { output.weight.tie(embedding.weight); }
  void members(nn::Visitor& v) override {
    v("embedding", embedding);
    v("output", output);
  }
  nn::Embedding embedding{5, 3};
  nn::Linear output{3, 5};
};

}  // namespace

TEST_CASE("the gradients of a layer and of its parameters are checked, and nothing of it changes", "[gradcheck][nn]") {
  Scaled layer = scaled(1);
  layer.norm.bias.freeze();
  const auto before = snapshot(layer);
  const Tensor own = layer.scale.value();
  const GradcheckResult result = nn::gradcheck(layer, normal({3, 4}, 2, DType::f64), on_device({}, {own}));
  INFO(result.message);
  CHECK(result.ok);
  CHECK(layer.scale.value().is_same(own));
  CHECK_FALSE(own.grad().defined());
  CHECK(layer.norm.bias.frozen());
  CHECK(same_state(layer.state_dict(), before));
}

TEST_CASE("a wrong gradient of one parameter is found and named", "[gradcheck][nn]") {
  Scaled layer = scaled(1.001);
  const Tensor own = layer.scale.value(), x = normal({3, 4}, 2, DType::f64);
  const GradcheckResult result = nn::gradcheck(layer, x, on_device({}, {own}));
  CHECK_FALSE(result.ok);
  CHECK_THAT(result.message, contains("scale [4] element") && !contains("input 0") && !contains("norm."));
  // The gradient of the input alone says nothing of it.
  CHECK(gradcheck([&](const std::vector<Tensor>& in) { return layer(in[0]); }, {x}, on_device({}, {x})).ok);
}

TEST_CASE("tied parameters are one, and a layer's inputs need no gradients", "[gradcheck][nn]") {
  Tied model;
  model.init(1);
  model.cast(DType::f64);
  model.to(device());
  const Tensor ids = tensor<int64_t>({4, 0, 4, 2}, {4});
  const auto forward = [&](const std::vector<Tensor>&) { return model.output(model.embedding(ids)); };
  const GradcheckResult result = nn::gradcheck(model, forward, {}, on_device({}, {model.embedding.weight}));
  INFO(result.message);
  CHECK(result.ok);
  CHECK(model.output.weight.value().is_same(model.embedding.weight.value()));
}

TEST_CASE("a layer that cannot be checked is refused by name", "[gradcheck][nn]") {
  Scaled layer(1);
  const Tensor x = normal({3, 4}, 2, DType::f64);
  CHECK_THROWS_WITH(nn::gradcheck(layer, x), contains("[parameter] used before init(seed)"));
  layer.init(1);
  layer.to(device());
  CHECK_THROWS_WITH(nn::gradcheck(layer, x), contains("[gradcheck] norm.weight: expected f64, got f32"));
  CHECK(layer.scale.value().dtype() == DType::f32);
}
