// The recurrent op against values worked by hand (and against those that other implementations got wrong).
#include <lamina/autograd/graph.h>
#include <lamina/ops/elementwise.h>
#include <lamina/ops/recurrent.h>
#include <lamina/ops/reduce.h>

#include "support/evaluate.h"

using namespace lamina;
using namespace lamina::test;

namespace {

double sigma(double x) { return 1 / (1 + std::exp(-x)); }

Tensor f64(const std::vector<double>& values, const Shape& shape) { return tensor(values, shape); }
Tensor zeros64(const Shape& shape) { return zeros(shape, DType::f64); }

/// H = 1 with weights of zero: only biases and the state act.
RecurrentParameters biases_only(const std::vector<double>& bias) {
  const auto gates = static_cast<int64_t>(bias.size());
  return {.weight_ih = zeros64({gates, 1}), .weight_hh = zeros64({gates, 1}), .bias_ih = f64(bias, {gates})};
}

/// B10: a_x and a_h given through the weights, H = 2, gains 1, no biases.
struct B10 {
  Tensor x = f64({1}, {1, 1, 1}), h0 = f64({1, 0}, {1, 2}), c0 = f64({0, 1}, {1, 2});
  RecurrentParameters p{.weight_ih = f64({1, 2, 3, 4, 5, 6, 7, 8}, {8, 1}),
                        .weight_hh = f64({1, 9, -1, 9, 2, 9, 0, 9, 0, 9, 3, 9, 1, 9, 1, 9}, {8, 2})};

  RecurrentResult run(RecurrentNorm norm, double eps = 1e-5) {
    const Tensor gain = ones({8}, DType::f64);
    const bool both = norm == RecurrentNorm::layer || norm == RecurrentNorm::layer_carry || norm == RecurrentNorm::rms;
    p.gain_ih = both ? gain : Tensor();
    p.gain_hh = both || norm == RecurrentNorm::layer_gates ? gain : Tensor();
    p.gain_c = norm == RecurrentNorm::none ? Tensor() : ones({2}, DType::f64);
    return recurrent(x, h0, c0, p, {.norm = norm, .eps = eps});
  }
};

}  // namespace

TEST_CASE("recurrent: gate order is i, f, g, o", "[ops][recurrent][B01]") {
  const RecurrentResult r = recurrent(zeros64({1, 1, 1}), zeros64({1, 1}), f64({0.5}, {1, 1}), biases_only({0.1, 0.2, 0.3, 0.4}));
  check_close(r.c, {0.427850}, six_digits);
  check_close(r.h, {0.241584}, six_digits);
  check_close(r.y, {0.241584}, six_digits);
}

TEST_CASE("recurrent: an LSTM's c and h are good to some units in the last place, however small", "[ops][recurrent]") {
  constexpr double units = 1e-6;  // 8 to 17 in f32; about a dozen roundings make h
  const std::vector<float> open{-30, -20, -3, 0, 0.5, 4, 30}, content{-12, -2, -0.3f, -1e-3f, 1e-6f, 0.1f, 0.9f, 5};
  std::vector<float> bias[4];
  std::vector<double> c, h;
  for (const double i : open)
    for (const double g : content)
      for (const double o : open) {
        const double gates[] = {i, 0, g, o};
        for (size_t k = 0; k < 4; ++k) bias[k].push_back(static_cast<float>(gates[k]));
        c.push_back(sigma(i) * std::tanh(g));
        h.push_back(sigma(o) * std::tanh(c.back()));
      }
  std::vector<float> all;
  for (const std::vector<float>& gate : bias) all.insert(all.end(), gate.begin(), gate.end());
  const auto hidden = static_cast<int64_t>(c.size());
  const RecurrentParameters p{.weight_ih = zeros({4 * hidden, 1}), .weight_hh = zeros({4 * hidden, hidden}), .bias_ih = tensor(all, {4 * hidden})};
  const RecurrentResult r = recurrent(zeros({1, 1, 1}), {}, {}, p);
  const auto check_digits = [&](const Tensor& have, const std::vector<double>& expected) {
    const std::vector<double> v = values(have);
    double worst = 0;
    for (size_t k = 0; k < v.size(); ++k) worst = std::max(worst, std::abs(v[k] / expected[k] - 1));
    CHECK(worst <= units);
  };
  check_digits(r.c, c);
  check_digits(r.h, h);
}

TEST_CASE("recurrent: both bias vectors count, each once", "[ops][recurrent][B02]") {
  RecurrentParameters p = biases_only({0, 1, 0, 0});
  const Tensor c0 = f64({1}, {1, 1});
  check_close(recurrent(zeros64({1, 1, 1}), {}, c0, p).c, {0.731059}, six_digits);
  p.bias_hh = p.bias_ih;
  check_close(recurrent(zeros64({1, 1, 1}), {}, c0, p).c, {0.880797}, six_digits);
  p.bias_ih = Tensor();
  check_close(recurrent(zeros64({1, 1, 1}), {}, c0, p).c, {0.731059}, six_digits);
}

TEST_CASE("recurrent: GRU's reset gate acts after the product, and z keeps the old state", "[ops][recurrent][B03]") {
  const RecurrentOptions gru{.cell = RecurrentCell::gru};
  RecurrentParameters p{.weight_ih = zeros64({3, 1}), .weight_hh = f64({0, 0, 1}, {3, 1}), .bias_hh = f64({0, 0, 0.3}, {3})};
  const Tensor h0 = f64({0.5}, {1, 1});
  const RecurrentResult r = recurrent(zeros64({1, 1, 1}), h0, {}, p, gru);
  check_close(r.h, {0.439974}, six_digits);
  CHECK(!r.c.defined());
  p.bias_ih = f64({0, 2, 0}, {3});
  check_close(recurrent(zeros64({1, 1, 1}), h0, {}, p, gru).h, {0.485690}, six_digits);
  // z = 1 keeps even what is small beside n.
  p.bias_ih = f64({0, 50, 5}, {3});
  check_close(recurrent(zeros64({1, 1, 1}), f64({1e-9}, {1, 1}), {}, p, gru).h * 1e9, {1.0}, f64_rounding * 1e3);
}

TEST_CASE("recurrent: RNN is one tanh, step after step, in either direction", "[ops][recurrent]") {
  const RecurrentParameters p{.weight_ih = f64({2}, {1, 1}), .weight_hh = f64({-1}, {1, 1}), .bias_ih = f64({0.5}, {1}), .bias_hh = f64({0.25}, {1})};
  const Tensor x = f64({0.1, 0.2}, {2, 1, 1});
  const double first = std::tanh(0.2 + 0.75), second = std::tanh(0.4 + 0.75 - first);
  const RecurrentResult forward = recurrent(x, {}, {}, p, {.cell = RecurrentCell::rnn});
  check_close(forward.y, {first, second}, f64_rounding);
  check_close(forward.h, {second}, f64_rounding);
  const double last = std::tanh(0.4 + 0.75), before = std::tanh(0.2 + 0.75 - last);
  const RecurrentResult reverse = recurrent(x, {}, {}, p, {.cell = RecurrentCell::rnn, .reverse = true});
  check_close(reverse.y, {before, last}, f64_rounding);
  check_close(reverse.h, {before}, f64_rounding);
}

TEST_CASE("recurrent: the places of the layer norms", "[ops][recurrent][B10]") {
  B10 b;
  const RecurrentResult layer = b.run(RecurrentNorm::layer);
  check_close(layer.h, {-0.585039, 0.637277}, six_digits);
  check_close(layer.c, {-0.094797, 0.337276}, six_digits);
  // K(c) of these two is +-d / sqrt(d^2 + eps), and in layer_carry that is c.
  const double d = (0.337276 + 0.094797) / 2, k = d / std::sqrt(d * d + 1e-5);
  const RecurrentResult carry = b.run(RecurrentNorm::layer_carry);
  check_close(carry.h, {-0.585039, 0.637277}, six_digits);
  check_close(carry.c, {-k, k}, six_digits);
  check_close(b.run(RecurrentNorm::layer_gates).h, {-0.204825, 0.556761}, six_digits);
  // layer_cell: a = [2 1 5 4 5 9 8 9] as it is.
  const double c0 = sigma(2) * std::tanh(5), c1 = sigma(4) + sigma(1) * std::tanh(9), spread = (c1 - c0) / 2;
  const double hat = spread / std::sqrt(spread * spread + 1e-5);
  const RecurrentResult cell = b.run(RecurrentNorm::layer_cell);
  check_close(cell.c, {c0, c1}, f64_rounding);
  check_close(cell.h, {sigma(8) * std::tanh(-hat), sigma(9) * std::tanh(hat)}, f64_rounding);
  check_close(b.run(RecurrentNorm::none).h, {sigma(8) * std::tanh(c0), sigma(9) * std::tanh(c1)}, f64_rounding);
}

TEST_CASE("recurrent: RMS norm divides by the root of the mean square", "[ops][recurrent]") {
  B10 b;
  const RecurrentResult r = b.run(RecurrentNorm::rms);
  const double x = std::sqrt(204.0 / 8 + 1e-5), h = std::sqrt((1 + 1 + 4 + 9 + 1 + 1.0) / 8 + 1e-5);
  const auto a = [&](double of_x, double of_h) { return of_x / x + of_h / h; };
  const double c0 = sigma(a(1, 1)) * std::tanh(a(5, 0)), c1 = sigma(a(4, 0)) + sigma(a(2, -1)) * std::tanh(a(6, 3));
  const double root = std::sqrt((c0 * c0 + c1 * c1) / 2 + 1e-5);
  check_close(r.c, {c0, c1}, f64_rounding);
  check_close(r.h, {sigma(a(7, 1)) * std::tanh(c0 / root), sigma(a(8, 1)) * std::tanh(c1 / root)}, f64_rounding);
}

TEST_CASE("recurrent: batch norm of two sequences, and the running statistics of each step", "[ops][recurrent]") {
  // RNN, H = 1: a_x = 2 x, so the batch of x = -1 and 3 has mean 2 and variance 16 (unbiased 32); a_h = h0 = 0 and 1: 0.5 and 0.25 (0.5).
  const RecurrentParameters p{.weight_ih = f64({2}, {1, 1}),
                              .weight_hh = f64({1}, {1, 1}),
                              .bias_ih = f64({0.1}, {1}),
                              .gain_ih = f64({0.5}, {1}),
                              .gain_hh = f64({0.25}, {1})};
  RecurrentStatistics s{
      .mean_ih = zeros64({3, 1}), .var_ih = ones({3, 1}, DType::f64), .mean_hh = zeros64({3, 1}), .var_hh = ones({3, 1}, DType::f64)};
  RecurrentOptions options{.cell = RecurrentCell::rnn, .norm = RecurrentNorm::batch, .eps = 0, .momentum = 0.5};
  const Tensor x = f64({-1, 3}, {1, 2, 1}), h0 = f64({0, 1}, {2, 1});
  check_close(recurrent(x, h0, {}, p, options, {}, s).h, {std::tanh(-0.5 - 0.25 + 0.1), std::tanh(0.5 + 0.25 + 0.1)}, f64_rounding);
  check_close(s.mean_ih, {1, 0, 0}, f64_rounding);
  check_close(s.var_ih, {16.5, 1, 1}, f64_rounding);
  check_close(s.mean_hh, {0.25, 0, 0}, f64_rounding);
  check_close(s.var_hh, {0.75, 1, 1}, f64_rounding);
  // Evaluation uses them and leaves them: one sequence is enough.
  options.training = false;
  const double a_x = (2 * 3 - 1) / std::sqrt(16.5), a_h = (1 - 0.25) / std::sqrt(0.75);
  check_close(recurrent(f64({3}, {1, 1, 1}), f64({1}, {1, 1}), {}, p, options, {}, s).h, {std::tanh(0.5 * a_x + 0.25 * a_h + 0.1)}, f64_rounding);
  check_close(s.mean_ih, {1, 0, 0}, f64_rounding);
}

TEST_CASE("recurrent: gradients of one LSTM step by hand", "[ops][recurrent]") {
  // H = 1, only biases: with the loss h, dh/do = o (1 - o) tanh(c), dc = o (1 - tanh(c)^2), and from there to i, f, g.
  const Tensor bias = f64({0.1, 0.2, 0.3, 0.4}, {4}), c0 = f64({0.5}, {1, 1});
  const auto run = evaluate(
      [](const std::vector<Tensor>& v) {
        RecurrentParameters p = biases_only({0, 0, 0, 0});
        p.bias_ih = v[0];
        return recurrent(zeros64({1, 1, 1}), {}, v[1], p).h;
      },
      {bias, c0}, f64({1}, {1, 1}));
  const double i = sigma(0.1), f = sigma(0.2), g = std::tanh(0.3), o = sigma(0.4), c = f * 0.5 + i * g, t = std::tanh(c), dc = o * (1 - t * t);
  check_close(run.gradients[0], {dc * g * i * (1 - i), dc * 0.5 * f * (1 - f), dc * i * (1 - g * g), t * o * (1 - o)}, f64_rounding);
  check_close(run.gradients[1], {dc * f}, f64_rounding);
}

TEST_CASE("recurrent: no steps and sequences without steps hand on the state", "[ops][recurrent][B04]") {
  const RecurrentParameters p{.weight_ih = normal({16, 3}, 1), .weight_hh = normal({16, 4}, 2), .bias_ih = normal({16}, 3)};
  const Tensor h0 = full({2, 4}, 0.25), c0 = full({2, 4}, 0.75);
  const RecurrentResult none = recurrent(zeros({0, 2, 3}), h0, c0, p);
  CHECK(none.y.shape().str() == "[0, 2, 4]");
  check_close(none.h, h0, exact);
  check_close(none.c, c0, exact);
  const std::vector<int64_t> lengths{3, 0};
  const RecurrentResult r = recurrent(normal({3, 2, 3}, 4), h0, c0, p, {}, lengths);
  const auto y = values(r.y), h = values(r.h), c = values(r.c);
  for (size_t k = 0; k < 4; ++k) {
    for (size_t t = 0; t < 3; ++t) {
      CHECK(y[t * 8 + k] != 0);
      CHECK(y[t * 8 + 4 + k] == 0);
    }
    CHECK(h[k] == y[16 + k]);
    CHECK(h[4 + k] == 0.25);
    CHECK(c[4 + k] == 0.75);
  }
}
