// Weight gradients of small batches stay factored until somebody looks. Nobody may notice: the same model with gradients looked at (which forms
// them) before the step is the oracle. [cpu]: on a GPU they are formed at once.

#include <lamina/autograd/graph.h>
#include <lamina/core/memory.h>
#include <lamina/nn/layers.h>
#include <lamina/ops/reduce.h>
#include <lamina/optim/optimizer.h>

#include <cmath>
#include <functional>
#include <limits>

#include "core/tensor_impl.h"
#include "support/catch.h"

using namespace lamina;

namespace {

constexpr int64_t width = 37, outputs = 29;

bool factored(const nn::Parameter& p) { return !p.tensor().impl()->gradient.factors.empty(); }

/// A linear layer with a gradient from `batches` backward passes of `rows` rows each.
struct Run {
  nn::Linear layer{width, outputs};

  explicit Run(DType dtype) {
    layer.init(5);
    layer.cast(dtype);
  }
  void backward(int64_t rows, uint64_t seed, double scale = 1) {
    Rng rng(seed);
    const DType dtype = layer.weight.tensor().dtype();
    const Tensor x = randn({rows, width}, rng, dtype, 0, scale), w = randn({rows, outputs}, rng, dtype);
    sum(layer(x) * w).backward();
  }
  template <class T>
  std::vector<T> weight() const {
    return layer.weight.tensor().to_vector<T>();
  }
};

using MakeOptimizer = std::function<std::unique_ptr<optim::Optimizer>(nn::Linear&)>;

std::vector<MakeOptimizer> optimizers() {
  std::vector<MakeOptimizer> all;
  for (const optim::AdamOptions options : {optim::AdamOptions{.lr = 0.1}, optim::AdamOptions{.lr = 0.1, .weight_decay = 0.3}}) {
    all.push_back([=](nn::Linear& l) { return std::make_unique<optim::Adam>(l.parameters(), options); });
    all.push_back([=](nn::Linear& l) { return std::make_unique<optim::AdamW>(l.parameters(), options); });
  }
  for (const optim::SGDOptions options : {optim::SGDOptions{.lr = 0.1}, optim::SGDOptions{.lr = 0.1, .weight_decay = 0.3},
                                          optim::SGDOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.2},
                                          optim::SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true}})
    all.push_back([=](nn::Linear& l) { return std::make_unique<optim::SGD>(l.parameters(), options); });
  // Groups: no decay on the bias, another rate for the weight.
  all.push_back([](nn::Linear& l) {
    auto groups = optim::no_decay_on_vectors(l.parameters());
    groups[0].lr_factor = 0.5;
    return std::make_unique<optim::AdamW>(groups, optim::AdamOptions{.lr = 0.1, .weight_decay = 0.2});
  });
  return all;
}

/// Three steps with `prepare` before each, with and without forming the gradient first.
template <class T>
std::vector<T> train(const MakeOptimizer& make, bool look, const std::function<void(Run&, uint64_t)>& prepare) {
  Run run(dtype_of<T>());
  const auto optimizer = make(run.layer);
  for (uint64_t step = 0; step < 3; ++step) {
    optimizer->zero_grad();
    prepare(run, 10 + step);
    if (look) run.layer.weight.grad();
    REQUIRE(factored(run.layer.weight) == !look);
    CHECK(optimizer->step());
  }
  return run.weight<T>();
}

template <class T>
double largest_difference(const std::vector<T>& a, const std::vector<T>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  return largest;
}

}  // namespace

TEST_CASE("factored gradients: one backward pass gives the bits of the formed gradient", "[optim][cpu]") {
  const auto initial = Run(DType::f32).weight<float>();
  for (const MakeOptimizer& make : optimizers()) {
    for (const int64_t rows : {1, 2, 3, 4, 5, 7, 8, 11, 16}) {
      INFO(rows << " rows");
      const auto one_pass = [rows](Run& run, uint64_t seed) { run.backward(rows, seed); };
      CHECK(train<float>(make, false, one_pass) == train<float>(make, true, one_pass));
      CHECK(train<double>(make, false, one_pass) == train<double>(make, true, one_pass));
      CHECK(largest_difference(train<float>(make, false, one_pass), initial) > 1e-2);
    }
  }
}

TEST_CASE("factored gradients: clipping by norm works on the factors", "[optim][cpu]") {
  for (const MakeOptimizer& make : optimizers()) {
    double norms[2];
    int index = 0;
    const auto clipped = [&](Run& run, uint64_t seed) {
      run.backward(4, seed);
      norms[index] = optim::clip_grad_norm(run.layer.parameters(), 0.5);
    };
    const auto fused = train<float>(make, false, clipped);
    index = 1;
    const auto formed = train<float>(make, true, clipped);
    CHECK(norms[0] == Approx(norms[1]).epsilon(1e-6));
    CHECK(fused == formed);  // the factor is applied to the same rounded products
    Run run(DType::f64);
    run.backward(4, 3);
    optim::clip_grad_norm(run.layer.parameters(), 0.5);
    CHECK(factored(run.layer.weight));
    const Tensor g = run.layer.weight.grad(), b = run.layer.bias.grad();
    CHECK(std::sqrt(sum(g * g).item() + sum(b * b).item()) == Approx(0.5).epsilon(1e-6));
  }
}

TEST_CASE("factored gradients: several backward passes add up, to rounding, and too many rows are formed", "[optim][cpu]") {
  for (const MakeOptimizer& make : optimizers()) {
    const auto twice = [](Run& run, uint64_t seed) { run.backward(4, seed), run.backward(5, seed + 100); };
    CHECK(largest_difference(train<double>(make, false, twice), train<double>(make, true, twice)) < 1e-8);
  }
  Run run(DType::f64), big(DType::f64);
  for (const uint64_t seed : {1, 2, 3, 4, 5}) {
    run.backward(4, seed);
    CHECK(factored(run.layer.weight) == (seed <= 4));
    Run one(DType::f64);
    one.backward(4, seed);
    big.layer.weight.tensor().set_grad(big.layer.weight.grad().defined() ? big.layer.weight.grad() + one.layer.weight.grad()
                                                                         : one.layer.weight.grad());
  }
  CHECK(largest_difference(run.layer.weight.grad().to_vector<double>(), big.layer.weight.grad().to_vector<double>()) < 1e-12);
}

TEST_CASE("factored gradients: large batches and small weights are formed at once", "[optim][cpu]") {
  Run run(DType::f32);
  run.backward(17, 1);
  CHECK_FALSE(factored(run.layer.weight));
  nn::Linear narrow(3, 3);
  narrow.init(1);
  Rng rng(1);
  sum(narrow(randn({4, 3}, rng))).backward();
  CHECK_FALSE(factored(narrow.weight));
}

TEST_CASE("factored gradients: hooks see and replace the formed gradient", "[optim][cpu]") {
  Run run(DType::f64), plain(DType::f64);
  Tensor seen;
  run.layer.weight.tensor().register_hook([&](const Tensor& g) {
    seen = g.clone();
    return g * 2.0;
  });
  run.backward(4, 1), plain.backward(4, 1);
  CHECK(seen.to_vector<double>() == plain.layer.weight.grad().to_vector<double>());
  CHECK(run.layer.weight.grad().to_vector<double>() == (plain.layer.weight.grad() * 2.0).to_vector<double>());
}

TEST_CASE("factored gradients: clipping by value, set_grad and autograd::grad", "[optim][cpu]") {
  Run run(DType::f64), plain(DType::f64);
  run.backward(4, 1), plain.backward(4, 1);
  optim::clip_grad_value(run.layer.parameters(), 0.3);
  const auto formed = plain.layer.weight.grad().to_vector<double>(), clamped = run.layer.weight.grad().to_vector<double>();
  double largest = 0;
  for (size_t i = 0; i < formed.size(); ++i) {
    CHECK(clamped[i] == std::min(0.3, std::max(-0.3, formed[i])));
    largest = std::max(largest, std::abs(formed[i]));
  }
  CHECK(largest > 0.3);
  run.layer.weight.tensor().set_grad(plain.layer.weight.grad());
  CHECK(run.layer.weight.grad().to_vector<double>() == formed);
}

TEST_CASE("factored gradients: a layer used twice adds both uses", "[optim][cpu]") {
  nn::Linear square(width, width);
  square.init(3);
  square.cast(DType::f64);
  Rng rng(4);
  const Tensor x = randn({4, width}, rng, DType::f64), w = randn({4, width}, rng, DType::f64);
  const auto loss = [&] { return sum(square(square(x)) * w); };
  loss().backward();
  CHECK(factored(square.weight));
  const std::vector<Tensor> parameters{square.weight.value()};
  const Tensor direct = autograd::grad(loss(), parameters)[0];
  CHECK(largest_difference(square.weight.grad().to_vector<double>(), direct.to_vector<double>()) < 1e-12);
  // One derivative by differences, so that both ways cannot be wrong together.
  double* entry = square.weight.tensor().mutable_data<double>() + 5;
  const double saved = *entry, step = 1e-6;
  *entry = saved + step;
  const double above = loss().item();
  *entry = saved - step;
  const double below = loss().item();
  *entry = saved;
  CHECK(direct.data<double>()[5] == Approx((above - below) / (2 * step)).epsilon(1e-6));
  CHECK(std::abs(direct.data<double>()[5]) > 1e-3);
}

TEST_CASE("factored gradients: inputs changed after backward do not change the update", "[optim][cpu]") {
  const auto train_once = [](bool spoil) {
    Run run(DType::f32);
    optim::Adam adam(run.layer.parameters());
    Rng rng(6);
    Tensor x = randn({4, width}, rng);
    const Tensor w = randn({4, outputs}, rng);
    sum(run.layer(x) * w).backward();
    if (spoil) x.fill_(1e9);
    adam.step();
    return run.weight<float>();
  };
  CHECK(train_once(false) == train_once(true));
}

TEST_CASE("factored gradients: nothing is updated from a gradient that is not finite", "[optim][cpu]") {
  for (const double scale : {std::numeric_limits<double>::infinity(), 1e30}) {  // 1e30: only the product overflows
    Run run(DType::f32);
    optim::Adam adam(run.layer.parameters());
    adam.check_finite = true;
    const auto before = run.weight<float>();
    Rng rng(7);
    const Tensor x = randn({4, width}, rng) * scale, w = randn({4, outputs}, rng) * 1e30;
    run.layer(x).backward(w);
    CHECK_FALSE(adam.step());
    CHECK(run.weight<float>() == before);
  }
}

TEST_CASE("factored gradients: the weight gradient takes no memory", "[optim][cpu]") {
  nn::Linear layer(784, 1000);
  layer.init(1);
  Rng rng(1);
  const Tensor x = randn({4, 784}, rng), w = randn({4, 1000}, rng);
  optim::SGD sgd(layer.parameters());
  const int64_t before = memory_stats().current_bytes;
  reset_peak_memory();
  layer(x).backward(w);
  sgd.step();
  CHECK(memory_stats().peak_bytes - before < 784 * 1000 * 4 / 10);
}
