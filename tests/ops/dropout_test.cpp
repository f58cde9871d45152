#include <lamina/autograd/graph.h>
#include <lamina/ops/dropout.h>
#include <lamina/ops/elementwise.h>

#include <limits>

#include "support/evaluate.h"

using namespace lamina;
using namespace lamina::test;

TEST_CASE("dropout: survivors are scaled, the rest is zero", "[ops][dropout]") {
  for (const double p : {0.1, 0.5, 0.75}) {
    Rng rng(11);
    const int64_t n = 200'003;
    const Tensor x = away_from_zero({n}, 3);
    const auto in = values(x), out = values(dropout(x, p, rng));
    int64_t dropped = 0;
    double worst = 0;
    for (size_t i = 0; i < in.size(); ++i) {
      if (out[i] == 0)
        ++dropped;
      else
        worst = std::max(worst, difference(out[i], in[i] / (1 - p)));
    }
    CHECK(worst <= f32_rounding);
    const double sd = std::sqrt(p * (1 - p) / static_cast<double>(n));
    CHECK(std::abs(static_cast<double>(dropped) / static_cast<double>(n) - p) < 5 * sd);
  }
}

TEST_CASE("dropout: the mask depends on the position in the stream alone", "[ops][dropout]") {
  const Tensor x = away_from_zero({1001}, 5);
  Rng first(7), same(7), other(8);
  const Tensor y = dropout(x, 0.5, first);
  CHECK(same_bits(y, dropout(x, 0.5, same)));
  CHECK(!same_bits(y, dropout(x, 0.5, other)));
  CHECK(!same_bits(y, dropout(x, 0.5, first)));  // the stream went on
  CHECK(first.key == 7);
  CHECK(first.counter == 2 * 251);  // blocks of four numbers

  // Four elements a block, kept where the 32-bit number is below (1 - p) 2^32; the same bits in f32 and f64.
  Rng from_bits(7), f64(7);
  const Tensor kept = bernoulli({1001}, 0.5, from_bits, DType::f32, device());
  check_close(y, x * kept * 2.0, exact);
  check_close(dropout(x.cast(DType::f64), 0.5, f64), y, exact);
}

TEST_CASE("dropout: the backward pass draws the same mask", "[ops][dropout]") {
  Rng rng(21);
  const Tensor x = away_from_zero({33, 31}, 5), dy = away_from_zero({33, 31}, 6);
  const Evaluation run = evaluate([&](const auto& v) { return dropout(v[0], 0.3, rng); }, {x}, dy);
  const auto y = values(run.y), dx = values(run.gradients[0]), g = values(dy);
  int64_t kept = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    kept += y[i] != 0;
    if (difference(dx[i], y[i] == 0 ? 0 : g[i] / 0.7) > f32_rounding) FAIL_CHECK("element " << i);
  }
  CHECK(kept > 500);
  // Later draws from the stream do not change a graph that already exists.
  const Tensor leaf = x.clone().set_requires_grad();
  const Tensor first = dropout(leaf, 0.5, rng);
  dropout(leaf, 0.5, rng);
  first.backward(ones({33, 31}));
  check_close(leaf.grad() * x, first, f32_rounding);
}

TEST_CASE("dropout: gradients", "[ops][dropout][gradcheck]") {
  const Rng start(3);
  check_gradients(
      [&](const auto& v) {
        Rng rng = start;  // a pure function: the same mask at each call
        return dropout(v[0], 0.4, rng);
      },
      {normal({7, 9}, 1, DType::f64)});
}

TEST_CASE("dropout: p = 0 is the identity, p = 1 gives zeros (B06)", "[ops][dropout][pitfall]") {
  Rng rng(1);
  const float inf = std::numeric_limits<float>::infinity();
  const Tensor x = tensor<float>({1, inf, -3, std::numeric_limits<float>::quiet_NaN(), 5}, {5});
  CHECK(dropout(x, 0, rng).is_same(x));
  CHECK(rng.counter == 0);
  const Evaluation run = evaluate([&](const auto& v) { return dropout(v[0], 1, rng); }, {x}, tensor<float>({1, 2, inf, 4, 5}, {5}));
  check_close(run.y, {0, 0, 0, 0, 0}, exact);
  check_close(run.gradients[0], {0, 0, 0, 0, 0}, exact);
}

TEST_CASE("dropout: extreme probabilities", "[ops][dropout]") {
  Rng rng(2);
  const Tensor x = ones({1000});
  check_close(dropout(x, 1e-12, rng), x, exact);
  check_close(dropout(x, 1 - 1e-12, rng), zeros({1000}), exact);
}

TEST_CASE("dropout: empty tensors and ranks", "[ops][dropout]") {
  Rng rng(2);
  for (const Shape& shape : {Shape{0}, Shape{3, 0}, Shape{}, Shape{1, 2, 3, 4, 5}}) {
    const Evaluation run = evaluate([&](const auto& v) { return dropout(v[0], 0.5, rng); }, {ones(shape)}, ones(shape));
    CHECK(run.y.shape() == shape);
    check_close(run.gradients[0], run.y, exact);
  }
}

TEST_CASE("dropout: the same bits for every thread count", "[ops][dropout][threads]") {
  const auto fn = [](const std::vector<Tensor>& v) {
    Rng rng(9);
    return dropout(v[0], 0.2, rng);
  };
  check_thread_counts(fn, {normal({300'007}, 1)});
  check_thread_counts(fn, {normal({1'003, 131}, 1, DType::f64)});
}

TEST_CASE("dropout: saves nothing", "[ops][dropout]") {
  Rng rng(1);
  const int64_t before = autograd::saved_bytes();
  const Tensor y = dropout(normal({64}, 1).set_requires_grad(), 0.5, rng);
  CHECK(y.requires_grad());
  CHECK(autograd::saved_bytes() == before);
}

TEST_CASE("dropout: errors", "[ops][dropout][errors]") {
  Rng rng(1);
  const Tensor x = ones({2});
  CHECK_THROWS_WITH(dropout(x, -0.1, rng), contains("[dropout] p: expected a probability in [0, 1], got -0.1"));
  CHECK_THROWS_WITH(dropout(x, 1.5, rng), contains("got 1.5"));
  CHECK_THROWS_WITH(dropout(x, std::nan(""), rng), contains("got nan"));
  CHECK_THROWS_WITH(dropout(ones({2}, DType::u8), 0.5, rng), contains("[dropout] expected") && contains("u8"));
}
