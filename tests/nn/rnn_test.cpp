// Recurrent layers as modules: parameters and their names, stacking and directions, initial values, states, statistics, errors.
#include <lamina/nn/rnn.h>

#include <cmath>

#include <lamina/autograd/graph.h>
#include <lamina/core/memory.h>
#include <lamina/ops/elementwise.h>
#include <lamina/ops/matmul.h>
#include <lamina/ops/norm.h>
#include <lamina/ops/reduce.h>
#include <lamina/ops/shape_ops.h>

#include "nn/rnn_support.h"
#include "support/random.h"
#include "support/threads.h"

using namespace lamina;
using namespace lamina::test;

TEST_CASE("recurrent layers: names, shapes and summaries") {
  nn::LSTM plain({.input = 3, .hidden = 4});
  CHECK(names(init(plain, 1).state_dict()) == "weight_ih_l0 weight_hh_l0 bias_ih_l0 bias_hh_l0");
  CHECK(plain.describe() == "LSTM(3 -> 4)");
  CHECK(plain.parameter_count() == 4 * 4 * (3 + 4 + 2));
  CHECK(plain.weights[0].weight_ih.shape() == Shape{16, 3});
  CHECK(plain.weights[0].weight_hh.shape() == Shape{16, 4});

  nn::GRU deep({.input = 3, .hidden = 4, .layers = 2, .bias = false, .dropout = 0.5, .bidirectional = true, .learn_state = true});
  CHECK(names(init(deep, 1).state_dict()) ==
        "weight_ih_l0 weight_hh_l0 weight_ih_l0_reverse weight_hh_l0_reverse weight_ih_l1 weight_hh_l1 weight_ih_l1_reverse weight_hh_l1_reverse h0 "
        "dropout.rng");
  CHECK(deep.describe() == "GRU(3 -> 4, 2 layers, bidirectional, no bias, learned state)");
  CHECK(deep.weights[2].weight_ih.shape() == Shape{12, 8});
  CHECK(deep.h0.shape() == Shape{4, 4});

  const auto names_of = [](const char* norm, RecurrentCell cell) {
    nn::Recurrent layer(cell, {.input = 3, .hidden = 4, .norm = norm, .max_steps = 5});
    CHECK(layer.describe() == std::string(cell == RecurrentCell::lstm ? "LSTM" : "GRU") + "(3 -> 4, norm " + norm + ")");
    return names(init(layer, 1).state_dict());
  };
  const std::string weights = "weight_ih_l0 weight_hh_l0 bias_ih_l0 bias_hh_l0 ";
  for (const char* norm : {"layer", "layer-carry", "rms"})
    CHECK(names_of(norm, RecurrentCell::lstm) == weights + "gain_ih_l0 gain_hh_l0 gain_c_l0 bias_c_l0");
  CHECK(names_of("layer-cell", RecurrentCell::lstm) == weights + "gain_c_l0 bias_c_l0");
  CHECK(names_of("layer-gates", RecurrentCell::lstm) == weights + "gain_hh_l0 gain_c_l0 bias_c_l0");
  CHECK(names_of("batch", RecurrentCell::lstm) ==
        weights +
            "gain_ih_l0 gain_hh_l0 gain_c_l0 bias_c_l0 running_mean_ih_l0 running_var_ih_l0 running_mean_hh_l0 running_var_hh_l0 running_mean_c_l0 "
            "running_var_c_l0");
  CHECK(names_of("batch", RecurrentCell::gru) ==
        weights + "gain_ih_l0 gain_hh_l0 running_mean_ih_l0 running_var_ih_l0 running_mean_hh_l0 running_var_hh_l0");
  CHECK(names_of("weight", RecurrentCell::gru) == "weight_ih_l0_g weight_ih_l0_v weight_hh_l0_g weight_hh_l0_v bias_ih_l0 bias_hh_l0");

  nn::LSTMCell cell({.input = 3, .hidden = 4, .norm = "layer"});
  CHECK(names(init(cell, 1).state_dict()) == "weight_ih weight_hh bias_ih bias_hh gain_ih gain_hh gain_c bias_c");
  CHECK(cell.describe() == "LSTMCell(3 -> 4, norm layer)");
  CHECK(nn::RNN({.input = 1, .hidden = 2, .batch_first = true}).describe() == "RNN(1 -> 2, batch first)");
}

TEST_CASE("recurrent layers: what they refuse, in one line") {
  using nn::Recurrent;
  const auto refuses = [](RecurrentCell cell, const nn::RecurrentLayerOptions& options, const std::string& message) {
    CHECK_THROWS_AS(Recurrent(cell, options), InputError);
    CHECK_THROWS_WITH(Recurrent(cell, options), message);
  };
  constexpr auto lstm = RecurrentCell::lstm, gru = RecurrentCell::gru;
  refuses(lstm, {.hidden = 4}, "[lstm] input: expected a size >= 1, got 0");
  refuses(gru, {.input = 3, .hidden = -4}, "[gru] hidden: expected a size >= 1, got -4");
  refuses(RecurrentCell::rnn, {.input = 3, .hidden = 4, .layers = 0}, "[rnn] layers: expected a size >= 1, got 0");
  refuses(lstm, {.input = 3, .hidden = int64_t{1} << 62}, "[lstm] hidden: expected a size <= 2147483647, got 4611686018427387904");
  refuses(gru, {.input = 3, .hidden = 4, .layers = int64_t{1} << 62}, "[gru] layers: expected a number <= 10000, got 4611686018427387904");
  refuses(lstm, {.input = 3, .hidden = 4, .dropout = 1.5}, "[lstm] dropout: expected a probability in [0, 1], got 1.5");
  refuses(lstm, {.input = 3, .hidden = 4, .eps = -1.0}, "[lstm] eps: expected a value >= 0, got -1");
  refuses(lstm, {.input = 3, .hidden = 4, .momentum = 2}, "[lstm] momentum: expected a value in [0, 1], got 2");
  refuses(lstm, {.input = 3, .hidden = 4, .gain = HUGE_VAL}, "[lstm] gain: expected a finite value, got inf");
  refuses(lstm, {.input = 3, .hidden = 4, .norm = "batch"},
          "[lstm] max_steps: expected for how many steps 'batch' keeps statistics of their own, got 0");
  refuses(gru, {.input = 3, .hidden = 4, .forget_bias = 1.0}, "[gru] forget_bias: GRU has no forget gate");
  refuses(lstm, {.input = 3, .hidden = 4, .bias = false, .forget_bias = 1.0}, "[lstm] forget_bias: the layer has no biases");
  refuses(gru, {.input = 3, .hidden = 4, .norm = "layer-cell"},
          "[gru] norm: GRU has no 'layer-cell'; expected one of none, layer, batch, rms, weight");
  for (const char* norm : {"instance", "group:2", "prms:0.5", "meanbatch", "weight+meanbatch"})
    refuses(lstm, {.input = 3, .hidden = 4, .norm = norm},
            std::string("[lstm] norm: LSTM has no '") + norm +
                "'; expected one of none, layer, batch, rms, weight, layer-cell, layer-carry, layer-gates");
  CHECK_THROWS_WITH(nn::LSTM({.input = 3, .hidden = 4, .init = "foo"}), contains("[init] unknown 'foo'"));
  for (const nn::RecurrentLayerOptions& options :
       {nn::RecurrentLayerOptions{.layers = 2}, {.batch_first = true}, {.dropout = 0.5}, {.bidirectional = true}}) {
    nn::RecurrentLayerOptions o = options;
    o.input = o.hidden = 3;
    CHECK_THROWS_AS(nn::GRUCell(o), InputError);
    CHECK_THROWS_WITH(nn::GRUCell(o), "[gru] layers, batch_first, dropout and bidirectional are for whole sequences, not for GRUCell");
  }

  nn::LSTM layer({.input = 3, .hidden = 4, .layers = 2});
  CHECK_THROWS_WITH(layer(zeros({5, 2, 3})), contains("[parameter] used before init(seed) or load_state_dict"));
  init(layer, 1);
  CHECK_THROWS_WITH(layer(zeros({5, 2, 4})), "[lstm] x: expected [T, N, 3], got [5, 2, 4] (in LSTM(3 -> 4, 2 layers))");
  CHECK_THROWS_WITH(layer(zeros({2, 3})), contains("got [2, 3]"));
  CHECK_THROWS_WITH(layer(zeros({5, 2, 3}), {zeros({1, 2, 4}), {}}),
                    "[lstm] h: expected [2, 2, 4], got [1, 2, 4] (x is [5, 2, 3], in LSTM(3 -> 4, 2 layers))");
  CHECK_THROWS_WITH(layer(zeros({5, 2, 3}), {{}, zeros({2, 3, 4})}), contains("[lstm] c: expected [2, 2, 4], got [2, 3, 4]"));
  CHECK_THROWS_WITH(layer(zeros({5, 2, 3}), {}, std::vector<int64_t>{5}), contains("lengths"));
  CHECK_THROWS_WITH(layer(zeros({5, 2, 3}), {}, std::vector<int64_t>{5, 6}), contains("lengths"));
  CHECK_THROWS_WITH(layer(zeros({5, 2, 3}, DType::f64)), contains("f64"));
  nn::GRU gru_layer({.input = 3, .hidden = 4});
  init(gru_layer, 1);
  CHECK_THROWS_WITH(gru_layer(zeros({5, 2, 3}), {{}, zeros({1, 2, 4})}), "[gru] c: GRU(3 -> 4) has no cell state");
  nn::LSTM batch({.input = 3, .hidden = 4, .norm = "batch", .max_steps = 5});
  init(batch, 1);
  CHECK_THROWS_WITH(batch(normal({5, 1, 3}, 1)), contains("2 sequences"));
  nn::RNNCell cell({.input = 3, .hidden = 4});
  init(cell, 1);
  CHECK_THROWS_WITH(cell(zeros({2, 4})), "[rnn] x: expected [N, 3], got [2, 4] (in RNNCell(3 -> 4))");
  CHECK_THROWS_WITH(cell(zeros({2, 3}), {zeros({1, 4}), {}}), contains("[rnn] h: expected [2, 4], got [1, 4]"));
  CHECK_THROWS_WITH(cell(zeros({2, 3}), {}, -1), contains("[rnn] step: expected a number >= 0, got -1"));
}

TEST_CASE("recurrent layers: a stack is its layers one after the other, a second direction is the reversed sequence") {
  for (const RecurrentCell cell : recurrent_cells)
    for (const std::string& norm : nn::Recurrent::norm_names(cell)) {
      nn::RecurrentLayerOptions options{.input = 3, .hidden = 4, .layers = 2, .norm = norm, .bidirectional = true, .gain = 0.7, .max_steps = 5};
      nn::Recurrent deep(cell, options);
      init(deep, 1);
      INFO(deep.describe());
      const Tensor x = normal({5, 3, 3}, 1), h0 = normal({4, 3, 4}, 2), c0 = cell == RecurrentCell::lstm ? normal({4, 3, 4}, 3) : Tensor();
      deep(x, {h0, c0});  // batch norm has seen something
      deep.eval();
      options.layers = 1;
      options.bidirectional = false;
      const auto alone = [&](int64_t index, const std::string& suffix, const Tensor& in) {
        options.input = in.size(2);
        nn::Recurrent one(cell, options);
        init(one, 2);
        one.load_state_dict(renamed(deep.state_dict(), suffix, "_l0"));
        one.eval();
        const auto part = [&](const Tensor& t) { return t.defined() ? slice(t, 0, index, index + 1) : t; };
        return one(in, {part(h0), part(c0)});
      };
      const std::vector<int64_t> backward = {4, 3, 2, 1, 0};
      const auto reversed = [&](const Tensor& t) { return index_select(t, 0, tensor(backward, {5})); };
      const nn::RecurrentOutput whole = deep(x, {h0, c0});
      const nn::RecurrentOutput f0 = alone(0, "_l0", x), r0 = alone(1, "_l0_reverse", reversed(x));
      const Tensor middle = concat({f0.y, reversed(r0.y)}, 2);
      const nn::RecurrentOutput f1 = alone(2, "_l1", middle), r1 = alone(3, "_l1_reverse", reversed(middle));
      check_close(whole.y, concat({f1.y, reversed(r1.y)}, 2), f32_sum);
      check_close(whole.state.h, concat({f0.state.h, r0.state.h, f1.state.h, r1.state.h}), f32_sum);
      if (c0.defined()) check_close(whole.state.c, concat({f0.state.c, r0.state.c, f1.state.c, r1.state.c}), f32_sum);
      CHECK(whole.state.h.shape() == Shape{4, 3, 4});
      CHECK(norm_of(whole.y) > 0.1);
    }
}

TEST_CASE("recurrent layers: batch first is the same transposed; states are not") {
  nn::LSTM time_first({.input = 3, .hidden = 4, .layers = 2, .norm = "layer", .bidirectional = true});
  nn::LSTM batch_first({.input = 3, .hidden = 4, .layers = 2, .norm = "layer", .batch_first = true, .bidirectional = true});
  init(time_first, 1);
  init(batch_first, 1);
  const Tensor x = normal({5, 2, 3}, 1), h0 = normal({4, 2, 4}, 2), c0 = normal({4, 2, 4}, 3);
  const std::vector<int64_t> lengths = {3, 5};
  const nn::RecurrentOutput a = time_first(x, {h0, c0}, lengths), b = batch_first(transpose(x, 0, 1), {h0, c0}, lengths);
  check_close(transpose(b.y, 0, 1), a.y, exact);
  check_close(b.state.h, a.state.h, exact);
  check_close(b.state.c, a.state.c, exact);
}

TEST_CASE("recurrent layers: initial values") {
  // PyTorch's: everything uniform in +-1/sqrt(H), biases too.
  nn::LSTM plain({.input = 7, .hidden = 25});
  init(plain, 1);
  for (const auto& [path, parameter] : plain.named_parameters()) {
    double largest = 0;
    for (const double v : values(*parameter)) largest = std::max(largest, std::abs(v));
    INFO(path);
    CHECK(largest <= 0.2);
    CHECK(largest > 0.18);
  }
  // A normaliser's gain and bias start as 1 (batch: 0.1) and 0, unless said.
  for (const RecurrentCell cell : recurrent_cells)
    for (const std::string& norm : nn::Recurrent::norm_names(cell))
      for (const bool given : {false, true}) {
        nn::RecurrentLayerOptions options{.input = 3, .hidden = 4, .norm = norm, .max_steps = 2};
        if (given) options.gain = 0.3;
        nn::Recurrent layer(cell, options);
        init(layer, 1);
        INFO(layer.describe());
        const nn::RecurrentWeights& w = layer.weights[0];
        for (const nn::Parameter* gain : {&w.gain_ih, &w.gain_hh, &w.gain_c})
          if (gain->defined())
            for (const double v : values(*gain)) CHECK(v == Approx(given ? 0.3 : norm == "batch" ? 0.1 : 1.0));
        if (w.bias_c.defined()) CHECK(norm_of(w.bias_c) == 0);
        const bool beta = norm != "none" && norm != "weight" && norm != "layer-cell";
        CHECK((norm_of(w.bias_ih) == 0) == beta);
        CHECK((norm_of(w.bias_hh) == 0) == beta);
      }
  // Others by gate: orthogonal blocks, and fans of one gate.
  nn::GRU orthogonal({.input = 9, .hidden = 6, .init = "orthogonal"});
  init(orthogonal, 3);
  for (int64_t gate = 0; gate < 3; ++gate) {
    const Tensor w = slice(orthogonal.weights[0].weight_hh.value().detach(), 0, gate * 6, gate * 6 + 6);
    std::vector<double> identity(36, 0.0);
    for (size_t i = 0; i < 6; ++i) identity[i * 7] = 1;
    check_close(matmul(w, transpose(w)), identity, f32_sum);
    const Tensor v = slice(orthogonal.weights[0].weight_ih.value().detach(), 0, gate * 6, gate * 6 + 6);  // [6, 9]: its rows
    check_close(matmul(v, transpose(v)), identity, f32_sum);
  }
  CHECK(norm_of(orthogonal.weights[0].bias_ih) == 0);
  nn::LSTM xavier({.input = 20, .hidden = 30, .init = "xavier_uniform"});
  init(xavier, 1);
  double largest = 0;
  for (const double v : values(xavier.weights[0].weight_ih)) largest = std::max(largest, std::abs(v));
  CHECK(largest == Approx(std::sqrt(6.0 / 50)).epsilon(0.02));
  // A value depends on the seed and the path alone: another layer on top changes nothing below.
  nn::LSTM one({.input = 3, .hidden = 4}), two({.input = 3, .hidden = 4, .layers = 2});
  init(one, 5);
  init(two, 5);
  CHECK(same_bits(one.weights[0].weight_hh.value(), two.weights[0].weight_hh.value()));
}

TEST_CASE("recurrent layers: weight norm is the weights' own norm, and g starts as ||v||") {
  for (const RecurrentCell cell : recurrent_cells) {
    nn::Recurrent normed(cell, {.input = 3, .hidden = 4, .norm = "weight", .init = "orthogonal"}), plain(cell, {.input = 3, .hidden = 4});
    normed.cast(DType::f64);
    plain.cast(DType::f64);
    plain.to(device());
    init(normed, 1);
    nn::RecurrentWeights &w = normed.weights[0], &p = plain.weights[0];
    check_close(w.norm_hh.g, norm(w.norm_hh.v.value(), {1}, true), f64_rounding);
    check_close(w.norm_hh.value(), w.norm_hh.v.value(), f64_rounding);
    w.norm_ih.g.set(uniform(w.norm_ih.g.shape(), 1, 0.5, 2, DType::f64));
    w.norm_hh.g.set(uniform(w.norm_hh.g.shape(), 2, 0.5, 2, DType::f64));
    w.bias_ih.set(normal(w.bias_ih.shape(), 3, DType::f64));
    plain.load_state_dict({{"weight_ih_l0", weight_norm(w.norm_ih.v, w.norm_ih.g).detach()},
                           {"weight_hh_l0", weight_norm(w.norm_hh.v, w.norm_hh.g).detach()},
                           {"bias_ih_l0", w.bias_ih.value().detach()},
                           {"bias_hh_l0", w.bias_hh.value().detach()}});
    const Tensor x = normal({4, 2, 3}, 4, DType::f64), dy = normal({4, 2, 4}, 5, DType::f64);
    const Tensor y = normed(x).y, expected = plain(x).y;
    check_close(y, expected, f64_rounding);
    y.backward(dy);
    expected.backward(dy);
    // d/dg = v . dw / ||v||
    const Tensor dg = sum(w.norm_hh.v.value().detach() * p.weight_hh.grad(), {1}, true) / norm(w.norm_hh.v.value().detach(), {1}, true);
    check_close(w.norm_hh.g.grad(), dg, 1e-12);
    CHECK(norm_of(w.norm_hh.v.grad()) > 1e-3);
    CHECK(norm_of(w.norm_ih.v.grad()) > 1e-3);
    // Initialisation from data is not for recurrent layers; it passes them by.
    const nn::StateDict before = snapshot(normed);
    nn::initialise_weight_norms(normed, [&] { normed(x); });
    CHECK(same_state(before, snapshot(normed)));
  }
}

TEST_CASE("recurrent layers: gradients of all parameters, learned state included, against central differences") {
  for (const RecurrentCell cell : recurrent_cells)
    for (const std::string& norm : nn::Recurrent::norm_names(cell)) {
      if (norm == "batch") continue;  // running statistics change from call to call; the op's own test has it
      nn::Recurrent layer(cell, {.input = 2, .hidden = 3, .layers = 2, .norm = norm, .bidirectional = true, .learn_state = true});
      layer.cast(DType::f64);
      init(layer, 1);
      INFO(layer.describe());
      for (const auto& [path, parameter] : layer.named_parameters())
        if (parameter->init().is_constant())
          parameter->set(normal(parameter->shape(), path.size(), DType::f64, path.starts_with("gain") || path.ends_with("_g") ? 0.9 : 0, 0.3));
      const std::vector<nn::Parameter*> parameters = layer.parameters();
      std::vector<Tensor> inputs = {normal({3, 2, 2}, 1, DType::f64)};
      for (nn::Parameter* parameter : parameters) inputs.push_back(parameter->value());
      check_gradients(
          [&](const std::vector<Tensor>& in) {
            for (size_t i = 0; i < parameters.size(); ++i) parameters[i]->tensor() = in[i + 1];
            const nn::RecurrentOutput out = layer(in[0], {}, std::vector<int64_t>{2, 3});
            const Tensor y = concat({flatten(out.y), flatten(out.state.h)});
            return out.state.c.defined() ? concat({y, flatten(out.state.c)}) : y;
          },
          inputs, {.rtol = 1e-4, .atol = 1e-7, .max_coordinates = 20});  // normalised rows of three values bend sharply
    }
}

TEST_CASE("recurrent layers: a learned state is every sequence's, where none is given") {
  nn::LSTM layer({.input = 3, .hidden = 4, .layers = 2, .learn_state = true});
  init(layer, 1);
  CHECK(names(layer.state_dict()).ends_with("h0 c0"));
  const Tensor x = normal({5, 2, 3}, 1), none = zeros({2, 2, 4});
  check_close(layer(x).y, layer(x, {none, none}).y, exact);
  const Tensor h0 = normal({2, 4}, 2), c0 = normal({2, 4}, 3);
  layer.h0.set(h0);
  layer.c0.set(c0);
  const Tensor h = expand(unsqueeze(h0, 1), {2, 2, 4}), c = expand(unsqueeze(c0, 1), {2, 2, 4});
  check_close(layer(x).y, layer(x, {h, c}).y, exact);
  check_close(layer(x, {none, {}}).y, layer(x, {none, c}).y, exact);
  sum(square(layer(x).y)).backward();
  CHECK(norm_of(layer.h0.grad()) > 1e-4);
  CHECK(norm_of(layer.c0.grad()) > 1e-4);
  nn::GRUCell cell({.input = 3, .hidden = 4, .learn_state = true});
  init(cell, 1);
  cell.h0.set(normal({1, 4}, 4));
  const Tensor given = expand(cell.h0.value(), {2, 4});
  check_close(cell(select(x, 0, 0)).h, cell(select(x, 0, 0), {given, {}}).h, exact);
}

TEST_CASE("recurrent dropout draws the same masks after a resume") {
  const nn::RecurrentLayerOptions options{.input = 3, .hidden = 8, .layers = 3, .dropout = 0.5};
  nn::LSTM layer(options), resumed(options);
  init(layer, 1);
  init(resumed, 2);
  const Tensor x = normal({4, 3, 3}, 1);
  const Tensor first = layer(x).y;
  const nn::StateDict state = snapshot(layer);
  const Tensor second = layer(x).y;
  CHECK(max_difference(first, second) > 1e-4);
  resumed.load_state_dict(state);
  CHECK(same_bits(resumed(x).y, second));
  CHECK(same_bits(resumed(x).y, layer(x).y));
}

TEST_CASE("recurrent layers are values: copied, cast, saved and loaded, trained as members") {
  for (const RecurrentCell cell : recurrent_cells)
    for (const std::string& norm : nn::Recurrent::norm_names(cell)) {
      nn::Recurrent layer(cell, {.input = 3, .hidden = 4, .layers = 2, .norm = norm, .bidirectional = true, .max_steps = 4});
      init(layer, 1);
      INFO(layer.describe());
      const Tensor x = normal({4, 3, 3}, 1);
      nn::Recurrent copy(layer), loaded(layer);
      init(loaded, 3);
      loaded.load_state_dict(layer.state_dict());
      const Tensor y = layer(x).y;
      CHECK(same_bits(copy(x).y, y));
      CHECK(same_bits(loaded(x).y, y));
      copy.weights[0].bias_ih.tensor().fill_(1);
      CHECK(norm_of(layer.weights[0].bias_ih) != 4);
      nn::Recurrent wide(layer), narrow(layer);
      wide.cast(DType::f64);
      check_close(wide(x.cast(DType::f64)).y, narrow(x).y.cast(DType::f64), 1e-3);  // f32 through normalisers of a few values
      CHECK(layer.summary().find(layer.describe()) != std::string::npos);
    }
}

TEST_CASE("recurrent layers learn to remember: the sum of signs over ten steps") {
  for (const RecurrentCell kind : recurrent_cells) {
    struct Model : nn::Module {
      nn::Recurrent layer;
      nn::Linear head{16, 1};
      explicit Model(RecurrentCell c) : layer(c, {.input = 1, .hidden = 16, .norm = "layer"}) {}
      void members(nn::Visitor& v) override {
        v("layer", layer);
        v("head", head);
      }
    } model(kind);
    init(model, 1);
    double first = 0, last = 0;
    for (uint64_t step = 0; step < 150; ++step) {
      const Tensor x = sign(normal({10, 32, 1}, step));
      const Tensor target = reshape(mean(x, {0}), {32, 1});
      const Tensor loss = mean(square(model.head(select(model.layer(x).state.h, 0, 0)) - target));
      loss.backward();
      for (nn::Parameter* p : model.parameters()) {
        Tensor value = p->tensor();
        const NoGrad no_grad;
        value.copy_(value - 0.05 * p->grad());
      }
      model.zero_grad();
      (step == 0 ? first : last) = loss.item();
    }
    INFO(model.layer.describe());
    CHECK(last < 0.5 * first);
  }
}

TEST_CASE("a recurrent layer that runs out of memory, wherever that is, throws and works again with more") {
  const Threads threads(2);
  const bool finite = GENERATE(true, false);
  nn::LSTM lstm({.input = 40, .hidden = 64, .norm = "layer"});
  lstm.init(1);
  Rng rng(2);
  Tensor x = randn({4, 64, 40}, rng);
  const Tensor dy = randn({4, 64, 64}, rng);
  if (!finite) x.mutable_data<float>()[50] = std::numeric_limits<float>::infinity();
  int failures = 0;
  bool done = false;
  for (int64_t room = 0; !done; room += 40000) {
    REQUIRE(room < (int64_t{1} << 26));
    lstm.zero_grad();
    release_cached_memory();
    set_memory_limit(memory_stats().current_bytes + room);
    try {
      lstm(x).y.backward(dy);
      done = true;
    } catch (const Error& error) {
      CHECK_THAT(error.what(), contains("out of memory"));
      ++failures;
    }
    set_memory_limit(0);
  }
  CHECK(failures > 20);
  const float largest = max(abs(lstm.parameters()[0]->grad())).item();
  CHECK(std::isfinite(largest) == finite);
  CHECK(largest != 0);
}
