// Recurrent layers where other libraries have gone wrong: worked values, empty sequences, dropout, truncated back-propagation.
#include <lamina/nn/rnn.h>

#include <cmath>

#include <lamina/autograd/graph.h>
#include <lamina/core/memory.h>
#include <lamina/ops/elementwise.h>
#include <lamina/ops/reduce.h>
#include <lamina/ops/shape_ops.h>
#include <lamina/optim/optimizer.h>

#include "nn/support.h"
#include "support/random.h"

using namespace lamina;
using namespace lamina::test;

namespace {

double logistic(double x) { return 1 / (1 + std::exp(-x)); }

Tensor f64(std::initializer_list<double> values, const Shape& shape) { return tensor(values, shape); }

/// A layer of f64 zeros (gains 1).
nn::Recurrent layer_of_zeros(RecurrentCell cell, nn::RecurrentLayerOptions options) {
  options.init = "zeros";
  nn::Recurrent layer(cell, options);
  layer.cast(DType::f64);
  return on_device(std::move(layer));
}

}  // namespace

TEST_CASE("B01: the gates of LSTM are i, f, g, o") {
  nn::Recurrent lstm = layer_of_zeros(RecurrentCell::lstm, {.input = 1, .hidden = 1});
  lstm.weights[0].bias_ih.set(f64({0.1, 0.2, 0.3, 0.4}, {4}));
  const nn::RecurrentOutput out = lstm(f64({0}, {1, 1, 1}), {Tensor(), f64({0.5}, {1, 1, 1})});
  check_close(out.state.c, {0.427850}, six_digits);
  check_close(out.state.h, {0.241584}, six_digits);
  check_close(out.y, {0.241584}, six_digits);
  // And those of GRU r, z, n.
  nn::Recurrent gru = layer_of_zeros(RecurrentCell::gru, {.input = 1, .hidden = 1});
  gru.weights[0].bias_ih.set(f64({0.1, 0.2, 0.3}, {3}));
  gru.weights[0].bias_hh.set(f64({0, 0, 0.7}, {3}));
  const double n = std::tanh(0.3 + logistic(0.1) * 0.7), z = logistic(0.2);
  check_close(gru(f64({0}, {1, 1, 1}), {f64({0.5}, {1, 1, 1}), {}}).y, {(1 - z) * n + z * 0.5}, f64_rounding);
}

TEST_CASE("B02: a forget bias of 1 makes f = s(1), not s(2)") {
  const auto forget = [](nn::Module& layer, const nn::Parameter& ih, const nn::Parameter& hh, auto&& step) {
    check_close(ih, {0, 0, 1, 1, 0, 0, 0, 0}, exact);
    check_close(hh, std::vector<double>(8, 0.0), exact);
    init(layer, 7);  // drawing does not undo it
    check_close(ih, {0, 0, 1, 1, 0, 0, 0, 0}, exact);
    check_close(step(), {0.731059, 2 * 0.731059}, six_digits);
  };
  const nn::RecurrentLayerOptions options{.input = 1, .hidden = 2, .init = "zeros", .forget_bias = 1};
  auto layer = on_device(nn::LSTM(options));
  forget(layer, layer.weights[0].bias_ih, layer.weights[0].bias_hh, [&] {
    return layer(zeros({1, 1, 1}), {Tensor(), tensor<float>({1, 2}, {1, 1, 2})}).state.c;
  });
  auto cell = on_device(nn::LSTMCell(options));
  forget(cell, cell.weights.bias_ih, cell.weights.bias_hh, [&] { return cell(zeros({1, 1}), {Tensor(), tensor<float>({1, 2}, {1, 2})}).c; });
  // With random biases only f's are set, in every layer and direction, -1 as well as 1.
  nn::LSTM random({.input = 3, .hidden = 4, .layers = 2, .bidirectional = true, .forget_bias = -1});
  init(random, 1);
  CHECK(random.weights.size() == 4);
  for (const nn::RecurrentWeights& w : random.weights) {
    const std::vector<double> ih = values(w.bias_ih), hh = values(w.bias_hh);
    for (size_t i = 0; i < 16; ++i) {
      const bool f = i / 4 == 1;
      CHECK((ih[i] == -1) == f);
      CHECK((hh[i] == 0) == f);
      CHECK((f || std::abs(ih[i]) <= 0.5));
    }
  }
}

TEST_CASE("B03: GRU resets after the recurrent product, and z keeps the old state") {
  nn::Recurrent gru = layer_of_zeros(RecurrentCell::gru, {.input = 1, .hidden = 1});
  gru.weights[0].weight_hh.set(f64({0, 0, 1}, {3, 1}));
  gru.weights[0].bias_hh.set(f64({0, 0, 0.3}, {3}));
  const Tensor x = f64({0}, {1, 1, 1}), h0 = f64({0.5}, {1, 1, 1});
  check_close(gru(x, {h0, {}}).state.h, {0.439974}, six_digits);
  gru.weights[0].bias_hh.set(f64({0, 2, 0.3}, {3}));
  check_close(gru(x, {h0, {}}).state.h, {0.485690}, six_digits);
}

TEST_CASE("B04: sequences of no steps keep their state, and their outputs are 0") {
  for (const auto cell : {RecurrentCell::lstm, RecurrentCell::gru, RecurrentCell::rnn})
    for (const std::string& norm : nn::Recurrent::norm_names(cell)) {
      nn::Recurrent layer(cell, {.input = 3, .hidden = 4, .layers = 2, .norm = norm, .bidirectional = true, .max_steps = 5});
      init(layer, 1);
      INFO(layer.describe());
      const Tensor h0 = full({4, 2, 4}, 0.25), c0 = cell == RecurrentCell::lstm ? full({4, 2, 4}, -0.5) : Tensor();
      const nn::RecurrentOutput none = layer(zeros({0, 2, 3}), {h0, c0});
      CHECK(none.y.shape() == Shape{0, 2, 8});
      check_close(none.state.h, h0, exact);
      if (c0.defined()) check_close(none.state.c, c0, exact);
      CHECK(layer(zeros({3, 0, 3})).y.shape() == Shape{3, 0, 8});
      CHECK(layer(zeros({3, 0, 3})).state.h.shape() == Shape{4, 0, 4});

      const Tensor x = normal({3, 3, 3}, 1);
      const Tensor h3 = full({4, 3, 4}, 0.25), c3 = c0.defined() ? full({4, 3, 4}, -0.5) : Tensor();
      const nn::RecurrentOutput some = layer(x, {h3, c3}, std::vector<int64_t>{3, 0, 3});
      for (int64_t i = 0; i < 4; ++i) {
        check_close(slice(select(some.state.h, 0, i), 0, 1, 2), std::vector<double>(4, 0.25), exact);
        if (c0.defined()) check_close(slice(select(some.state.c, 0, i), 0, 1, 2), std::vector<double>(4, -0.5), exact);
      }
      check_close(slice(some.y, 1, 1, 2), std::vector<double>(24, 0.0), exact);
      for (const double v : values(some.y)) CHECK(std::isfinite(v));
      CHECK(norm_of(slice(some.y, 1, 0, 1)) > 0.01);
      sum(square(some.y)).backward();
      for (const auto& [path, parameter] : layer.named_parameters())
        for (const double v : values(parameter->grad())) CHECK(std::isfinite(v));
    }
}

TEST_CASE("B06: dropout acts between layers, not after the last") {
  const Tensor x = normal({4, 3, 5}, 1);
  // One layer: nothing to drop, no stream.
  nn::LSTM one({.input = 5, .hidden = 16, .dropout = 0.9}), plain({.input = 5, .hidden = 16});
  init(one, 1);
  init(plain, 1);
  CHECK(one.named_buffers().empty());
  CHECK(same_bits(one(x).y, plain(x).y));

  nn::LSTM two({.input = 5, .hidden = 16, .layers = 2, .dropout = 0.9}), same({.input = 5, .hidden = 16, .layers = 2});
  init(two, 1);
  init(same, 1);
  const Tensor y = two(x).y;
  CHECK(max_difference(y, same(x).y) > 1e-3);
  for (const double v : values(y)) CHECK(v != 0);  // the last layer's output is whole
  // The first layer's state is whole as well, and evaluation drops nothing.
  CHECK(same_bits(select(two(x).state.h, 0, 0), select(same(x).state.h, 0, 0)));
  two.eval();
  CHECK(same_bits(two(x).y, same(x).y));
}

TEST_CASE("B06: dropout of everything gives what a second layer makes of zeros, and zero gradients") {
  nn::GRU gru({.input = 5, .hidden = 6, .layers = 2, .dropout = 1}), second({.input = 6, .hidden = 6});
  init(gru, 1);
  second.to(device());
  const Tensor x = normal({4, 3, 5}, 1).set_requires_grad();
  const nn::RecurrentOutput out = gru(x);
  nn::StateDict state;
  for (const auto& [name, value] : gru.state_dict())
    if (name.ends_with("_l1")) state.emplace_back(name.substr(0, name.size() - 1) + "0", value);
  second.load_state_dict(state);
  check_close(out.y, second(zeros({4, 3, 6})).y, f32_rounding);
  sum(square(out.y)).backward();
  check_close(x.grad(), std::vector<double>(60, 0.0), exact);
  for (const auto& [path, parameter] : gru.named_parameters()) {
    INFO(path);
    for (const double v : values(parameter->grad())) CHECK(std::isfinite(v));
    const bool cut_off = path.ends_with("_l0") || path == "weight_ih_l1";
    CHECK((norm_of(parameter->grad()) == 0) == cut_off);
  }
}

TEST_CASE("B07: a thousand chunks with the state carried over: nodes, memory and requests to the system stay constant", "[pool]") {
  nn::LSTM lstm({.input = 8, .hidden = 32, .norm = "layer"});
  init(lstm, 1);
  optim::SGD sgd(lstm.parameters(), {.lr = 0.01});
  nn::RecurrentState state;
  const Tensor x = normal({20, 4, 8}, 1), dy = normal({20, 4, 32}, 2);
  int64_t nodes = 0, saved = 0, bytes = 0, allocations = 0;
  const auto train = [&] {
    sgd.zero_grad();
    const nn::RecurrentOutput out = lstm(x, state);
    out.y.backward(dy);
    sgd.step();
    state = out.state.detach();
  };
  for (int chunk = 0; chunk < 1000; ++chunk) {
    train();
    if (chunk == 50) {
      nodes = autograd::live_nodes();
      saved = autograd::saved_bytes();
      bytes = memory_stats(device()).current_bytes;
      allocations = memory_stats(device()).system_allocations;
    }
    CHECK_FALSE((state.h.requires_grad() || state.c.requires_grad()));
  }
  CHECK(autograd::live_nodes() == nodes);
  CHECK(autograd::saved_bytes() == saved);
  CHECK(memory_stats(device()).current_bytes == bytes);
  CHECK(memory_stats(device()).system_allocations == allocations);
  CHECK(norm_of(state.h) > 0.01);
}

TEST_CASE("B07: chunks give what the whole sequence gives; undetached, its gradients too") {
  for (const auto cell : {RecurrentCell::lstm, RecurrentCell::gru, RecurrentCell::rnn})
    for (const std::string& norm : nn::Recurrent::norm_names(cell)) {
      if (norm == "batch") continue;  // whose statistics count steps from each call's start
      const auto make = [&] {
        nn::Recurrent layer(cell, {.input = 3, .hidden = 5, .layers = 2, .norm = norm});
        layer.cast(DType::f64);
        init(layer, 1);
        return layer;
      };
      nn::Recurrent whole = make(), chunked = make(), detached = make();
      INFO(whole.describe());
      const Tensor x = normal({9, 2, 3}, 1, DType::f64), dy = normal({9, 2, 5}, 2, DType::f64);
      const nn::RecurrentOutput expected = whole(x);
      expected.y.backward(dy);
      nn::RecurrentState state, cut;
      Tensor loss = scalar(0, DType::f64);
      for (int64_t begin = 0; begin < 9; begin += 3) {
        const nn::RecurrentOutput out = chunked(slice(x, 0, begin, begin + 3), state);
        check_close(out.y, slice(expected.y, 0, begin, begin + 3), f64_rounding);
        loss = loss + sum(out.y * slice(dy, 0, begin, begin + 3));
        state = out.state;
        const nn::RecurrentOutput truncated = detached(slice(x, 0, begin, begin + 3), cut);
        check_close(truncated.y, out.y, exact);
        truncated.y.backward(slice(dy, 0, begin, begin + 3));  // needs no other chunk's graph
        cut = truncated.state.detach();
      }
      check_close(state.h, expected.state.h, f64_rounding);
      check_close(cut.h, expected.state.h, f64_rounding);
      if (state.c.defined()) check_close(cut.c, expected.state.c, f64_rounding);
      loss.backward();
      const auto mine = chunked.named_parameters(), theirs = whole.named_parameters(), truncated = detached.named_parameters();
      for (size_t i = 0; i < mine.size(); ++i) {
        INFO(mine[i].path);
        check_close(mine[i].parameter->grad(), theirs[i].parameter->grad(), 1e-10);
        CHECK(norm_of(mine[i].parameter->grad()) > 1e-6);
        CHECK(norm_of(truncated[i].parameter->grad()) > 1e-6);
      }
      CHECK(max_difference(truncated[1].parameter->grad(), theirs[1].parameter->grad()) > 1e-6);  // W_hh: history is cut
    }
}

TEST_CASE("B10: the norms of an LN-LSTM stand where the paper puts them") {
  const auto made = [](const char* norm) {
    nn::Recurrent lstm = layer_of_zeros(RecurrentCell::lstm, {.input = 1, .hidden = 2, .norm = norm});
    lstm.weights[0].weight_ih.set(f64({1, 2, 3, 4, 5, 6, 7, 8}, {8, 1}));
    lstm.weights[0].weight_hh.set(f64({1, 0, -1, 0, 2, 0, 0, 0, 0, 0, 3, 0, 1, 0, 1, 0}, {8, 2}));
    return lstm;
  };
  const Tensor x = f64({1}, {1, 1, 1});
  const nn::RecurrentState state{f64({1, 0}, {1, 1, 2}), f64({0, 1}, {1, 1, 2})};
  nn::Recurrent paper = made("layer");
  const nn::RecurrentOutput out = paper(x, state);
  check_close(out.state.h, {-0.585039, 0.637277}, six_digits);
  check_close(out.state.c, {-0.094797, 0.337276}, six_digits);  // c itself is not normalised
  // Its c carried on normalised, the same h for a first step.
  const nn::RecurrentOutput carried = made("layer-carry")(x, state);
  check_close(carried.state.h, {-0.585039, 0.637277}, six_digits);
  check_close(carried.state.c, {-0.999893, 0.999893}, six_digits);
  // Every gate of the sum by itself, as TensorFlow has it.
  check_close(made("layer-gates")(x, state).state.h, {-0.204825, 0.556761}, six_digits);
  // The bias stands after the norm: one that is equal for all gates does not cancel.
  paper.weights[0].bias_ih.set(full({8}, 1, DType::f64));
  CHECK(max_difference(paper(x, state).state.h, out.state.h) > 0.01);
  // Only c on its way out (the paper's DRAW).
  nn::Recurrent draw = made("layer-cell");
  const nn::RecurrentOutput cell = draw(x, state);
  const auto gate = [](double a) { return logistic(a); };
  const double c1 = gate(2) * std::tanh(5.0), c2 = gate(4) + gate(1) * std::tanh(9.0);  // a = a_x + a_h = 2 1 5 4 5 9 8 9
  check_close(cell.state.c, {c1, c2}, f64_rounding);
  const double mean = (c1 + c2) / 2, rstd = 1 / std::sqrt((c1 - mean) * (c1 - mean) + 1e-5);
  check_close(cell.state.h, {gate(8) * std::tanh((c1 - mean) * rstd), gate(9) * std::tanh((c2 - mean) * rstd)}, f64_rounding);
}

TEST_CASE("recurrent batch norm normalises each step by its batch") {
  // One unit, W_ih = 1, W_hh = 0: a_x is x. Two cases are +-1 of each other whatever x is.
  nn::Recurrent rnn = layer_of_zeros(RecurrentCell::rnn, {.input = 1, .hidden = 1, .norm = "batch", .eps = 0.0, .momentum = 0.5, .max_steps = 2});
  check_close(rnn.weights[0].gain_ih, {0.1}, f32_rounding);  // Cooijmans et al. 2017
  rnn.weights[0].weight_ih.set(f64({1}, {1, 1}));
  rnn.weights[0].gain_ih.set(f64({2}, {1}));
  rnn.weights[0].bias_ih.set(f64({0.5}, {1}));
  const Tensor x = f64({1, 3, 10, 20}, {2, 2, 1});
  check_close(rnn(x).y, {std::tanh(-1.5), std::tanh(2.5), std::tanh(-1.5), std::tanh(2.5)}, f64_rounding);
  check_close(rnn.weights[0].running_mean[0].tensor(), {1, 7.5}, f64_rounding);
  check_close(rnn.weights[0].running_var[0].tensor(), {1.5, 25.5}, f64_rounding);  // unbiased: 2 and 50
  rnn.eval();
  check_close(rnn(x).y,
              {std::tanh(0.5), std::tanh(2 * 2 / std::sqrt(1.5) + 0.5), std::tanh(2 * 2.5 / std::sqrt(25.5) + 0.5),
               std::tanh(2 * 12.5 / std::sqrt(25.5) + 0.5)},
              f64_rounding);
  check_close(rnn.weights[0].running_mean[0].tensor(), {1, 7.5}, f64_rounding);
}
