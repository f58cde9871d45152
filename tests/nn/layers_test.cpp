#include <lamina/nn/layers.h>

#include <cmath>

#include <lamina/nn/sequential.h>
#include <lamina/ops/elementwise.h>

#include "nn/support.h"
#include "support/catch.h"
#include "support/random.h"

using namespace lamina;
using namespace lamina::test;

TEST_CASE("Linear: y = x W^T + b, any leading axes") {
  auto linear = on_device(nn::Linear(2, 3));
  CHECK_THROWS_WITH(linear(ones({1, 2})), contains("[parameter] used before init(seed) or load_state_dict: shape [3, 2]"));
  linear.weight.set(tensor<float>({1, 2, 3, 4, 5, 6}, {3, 2}));
  linear.bias.set(tensor<float>({0.5, 0, -1}, {3}));
  check_close(linear(tensor<float>({1, 10}, {1, 2})), {21.5, 43, 64}, exact);
  CHECK(linear(ones({4, 1, 2})).shape() == Shape{4, 1, 3});
  CHECK(linear(ones({0, 2})).shape() == Shape{0, 3});
  CHECK_THROWS_WITH(linear(ones({1, 4})), contains("[linear]") && contains("[1, 4]"));
  CHECK_THROWS_WITH(nn::Linear(-1, 2), contains("[linear] expected sizes >= 0"));

  auto no_bias = on_device(nn::Linear(2, 3, {.bias = false}));
  CHECK(no_bias.parameters().size() == 1);
  no_bias.weight.set(linear.weight.value());
  check_close(no_bias(tensor<float>({1, 10}, {1, 2})), {21, 43, 65}, exact);
  CHECK(linear.describe() == "Linear(2 -> 3)");
  CHECK(no_bias.describe() == "Linear(2 -> 3, no bias)");
}

TEST_CASE("Linear's default bounds are PyTorch's, options replace them") {
  nn::Linear linear(100, 50);
  init(linear, 1);
  for (const Tensor& p : {linear.weight.value(), linear.bias.value()})
    for (const double v : values(p)) CHECK(std::abs(v) <= 0.1);  // 1 / sqrt(100)
  double largest = 0;
  for (const double v : values(linear.weight.value())) largest = std::max(largest, std::abs(v));
  CHECK(largest > 0.099);
  auto other = on_device(nn::Linear(4, 3, {.weight_init = nn::init::constant(2), .bias_init = nn::init::zeros()}));
  check_close(other(ones({1, 4})), {8, 8, 8}, exact);
  // Zero-sized layers are legal.
  nn::Linear empty(0, 2);
  init(empty, 1);
  check_close(empty(ones({1, 0})), {0, 0}, exact);
}

TEST_CASE("Embedding: rows by id; the padding row is zero and gets no gradient") {
  nn::Embedding embedding(5, 3, 1);
  init(embedding, 4);
  const auto table = values(embedding.weight.value());
  for (size_t i = 0; i < 15; ++i) CHECK((table[i] == 0) == (i / 3 == 1));
  const Tensor y = embedding(tensor<int64_t>({4, 1, 4, 0}, {2, 2}));
  CHECK(y.shape() == Shape{2, 2, 3});
  const auto have = values(y);
  for (size_t i = 0; i < 3; ++i) {
    CHECK(have[i] == table[12 + i]);
    CHECK(have[3 + i] == 0);
  }
  y.backward(ones({2, 2, 3}) * 0.5);
  check_close(embedding.weight.grad(), {0.5, 0.5, 0.5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1}, exact);
  CHECK(embedding.describe() == "Embedding(5 x 3, padding 1)");
  CHECK_THROWS_WITH(nn::Embedding(5, 3, 5), contains("[embedding] padding: expected -1 (none) or a row of [5, 3], got 5"));
  CHECK_THROWS_WITH(nn::Embedding(5, 3, -2), contains("got -2"));
}

TEST_CASE("Dropout: identity in evaluation, masks from (seed, path, position) in training") {
  nn::Sequential model(nn::Dropout(0.25), nn::Dropout(0.25));
  const Tensor x = ones({1000});
  auto& first = model.at<nn::Dropout>(0);
  CHECK_THROWS_WITH(first(x), contains("[dropout] used in training before init(seed)") && contains("Dropout(0.25)"));
  init(model, 1);
  const Tensor a = first(x), b = first(x), c = model.at<nn::Dropout>(1)(x);
  int zeros = 0;
  for (const double v : values(a)) {
    CHECK((v == 0 || v == Approx(1 / 0.75)));
    zeros += v == 0;
  }
  CHECK(std::abs(zeros - 250) < 5 * 14);  // five standard deviations
  CHECK_FALSE(same_bits(a, b));
  CHECK_FALSE(same_bits(a, c));
  init(model, 1);
  CHECK(same_bits(first(x), a));
  model.eval();
  const Tensor position = first.rng.tensor().clone();
  CHECK(same_bits(model(x), x));
  CHECK(same_bits(position, first.rng.tensor()));
  // A copy continues at the same position.
  model.train();
  nn::Dropout copy(first);
  CHECK(same_bits(copy(x), first(x)));
}

TEST_CASE("B06: dropout at p = 1 gives zeros and a zero gradient, p outside [0, 1] is refused") {
  nn::Dropout all(1.0), none(0.0);
  init(all, 1);
  Tensor x = ones({5}).set_requires_grad();
  const Tensor y = all(x);
  check_close(y, {0, 0, 0, 0, 0}, exact);
  y.backward(normal({5}, 1));
  check_close(x.grad(), {0, 0, 0, 0, 0}, exact);
  CHECK(same_bits(none(x), x));  // needs no stream
  for (const double p : {-0.1, 1.1, std::nan("")}) CHECK_THROWS_WITH(nn::Dropout(p), contains("[dropout] p: expected a probability in [0, 1]"));
}

TEST_CASE("activations and reshapes as modules") {
  const Tensor x = tensor<float>({-1, 0, 2}, {3, 1});
  check_close(nn::ReLU()(x), {0, 0, 2}, exact);
  check_close(nn::LeakyReLU(0.1)(x), {-0.1, 0, 2});
  check_close(nn::Tanh()(x), {std::tanh(-1.0), 0, std::tanh(2.0)});
  check_close(nn::Sigmoid()(x), {0.2689414, 0.5, 0.8807971}, six_digits);
  check_close(nn::GELU()(x), {-0.1586553, 0, 1.9544997}, six_digits);
  check_close(nn::GELU(Gelu::tanh)(x), {-0.1588080, 0, 1.9545977}, six_digits);
  check_close(nn::SiLU()(x), {-0.2689414, 0, 1.7615942}, six_digits);
  check_close(nn::Softplus()(x), {0.3132617, 0.6931472, 2.1269280}, six_digits);
  CHECK(nn::Flatten()(zeros({2, 3, 4})).shape() == Shape{2, 12});
  CHECK(nn::Flatten()(zeros({5})).shape() == Shape{5, 1});
  CHECK_THROWS_WITH(nn::Flatten()(scalar(1)), contains("[flatten] expected [N, ...], got []"));
  CHECK(nn::GELU().describe() == "GELU");
  CHECK(nn::LeakyReLU(0.1).describe() == "LeakyReLU(0.1)");
}

TEST_CASE("Sequential applies its layers in order, functions too") {
  nn::Sequential model(nn::Linear(2, 2), [](const Tensor& x) { return x * 2.0; });
  model.add(nn::Sequential(nn::Linear(2, 1)));
  CHECK(model.size() == 3);
  CHECK(names([&] {
          init(model, 1);
          return model.state_dict();
        }()) == "0.weight 0.bias 2.0.weight 2.0.bias");
  const Tensor x = normal({3, 2}, 1);
  const Tensor by_hand = model.at<nn::Sequential>(2).at<nn::Linear>(0)(model.at<nn::Linear>(0)(x) * 2.0);
  check_close(model(x), by_hand, exact);
  CHECK(same_bits(nn::Sequential()(x), x));
  CHECK_THROWS_WITH(model.at<nn::Dropout>(0), contains("[sequential] at(0): the layer is of another type: Linear(2 -> 2)"));
  CHECK_THROWS_WITH(model.at<nn::Linear>(1), contains("a plain function"));
  CHECK_THROWS_WITH(model.at<nn::Linear>(3), contains("expected an index below 3, got 3"));
  // Moving keeps the parameters where they are, so optimisers stay valid.
  nn::Parameter* weight = &model.at<nn::Linear>(0).weight;
  nn::Sequential moved = std::move(model);
  CHECK(&moved.at<nn::Linear>(0).weight == weight);
}
