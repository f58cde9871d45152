// Single steps of recurrent layers beside whole sequences, and recurrent batch norm's population statistics.
#include <lamina/nn/rnn.h>

#include <cmath>

#include <lamina/autograd/graph.h>
#include <lamina/core/warning.h>
#include <lamina/ops/matmul.h>
#include <lamina/ops/reduce.h>
#include <lamina/ops/shape_ops.h>

#include "nn/rnn_support.h"
#include "support/random.h"

using namespace lamina;
using namespace lamina::test;

TEST_CASE("single steps give what the layer gives, batch norm's statistics included") {
  for (const RecurrentCell kind : recurrent_cells)
    for (const std::string& norm : nn::Recurrent::norm_names(kind)) {
      const nn::RecurrentLayerOptions options{.input = 3, .hidden = 4, .norm = norm, .momentum = 0.3, .max_steps = 3};
      nn::Recurrent layer(kind, options);
      nn::RecurrentStep cell(kind, options);
      init(layer, 1);
      init(cell, 2);
      cell.load_state_dict(renamed(layer.state_dict(), "_l0", ""));
      INFO(layer.describe());
      const Tensor x = normal({5, 3, 3}, 1);
      for (const bool training : {true, false}) {
        layer.train(training);
        cell.train(training);
        const nn::RecurrentOutput out = layer(x);
        nn::RecurrentState state;
        for (int64_t t = 0; t < 5; ++t) {
          state = cell(select(x, 0, t), state, t);
          check_close(state.h, select(out.y, 0, t), f32_sum);
        }
        if (state.c.defined()) check_close(state.c, select(out.state.c, 0, 0), f32_sum);
        for (size_t i = 0; i < 3 && layer.weights[0].running_mean[i].defined(); ++i) {
          check_close(cell.weights.running_mean[i].tensor(), layer.weights[0].running_mean[i].tensor(), f32_sum);
          check_close(cell.weights.running_var[i].tensor(), layer.weights[0].running_var[i].tensor(), f32_sum);
        }
      }
    }
}

TEST_CASE("recurrent batch norm: population statistics are averages over batches of the steps that they have") {
  for (const bool of_steps : {false, true}) {
    const nn::RecurrentLayerOptions options{.input = 3, .hidden = 4, .norm = "batch", .max_steps = 3};
    nn::LSTM layer(options);
    nn::LSTMCell cell(options);
    init(layer, 1);
    init(cell, 2);
    cell.load_state_dict(renamed(layer.state_dict(), "_l0", ""));
    INFO((of_steps ? "cell" : "layer"));
    // Batches of 2, 4 and 5 steps: the last row serves steps 2, 3 and 4.
    const std::vector<Tensor> batches = {normal({2, 3, 3}, 1), normal({4, 6, 3}, 2), normal({5, 2, 3}, 3)};
    // a_x of every step and batch, in double.
    std::vector<std::vector<double>> mean(3, std::vector<double>(16)), var = mean;
    std::vector<double> count(3);
    for (const Tensor& x : batches)
      for (int64_t t = 0; t < x.size(0); ++t) {
        const auto row = static_cast<size_t>(std::min<int64_t>(t, 2));
        const Tensor a = linear(select(x, 0, t), layer.weights[0].weight_ih).detach();
        const std::vector<double> m = values(lamina::mean(a, {0})), v = values(lamina::var(a, {0}, 1));
        ++count[row];
        for (size_t i = 0; i < 16; ++i) {
          mean[row][i] += m[i];
          var[row][i] += v[i];
        }
      }
    std::vector<double> expected_mean, expected_var;
    for (size_t row = 0; row < 3; ++row)
      for (size_t i = 0; i < 16; ++i) {
        expected_mean.push_back(mean[row][i] / count[row]);
        expected_var.push_back(var[row][i] / count[row]);
      }
    const auto forward = [&] {
      for (const Tensor& x : batches) {
        if (!of_steps) {
          layer(x);
          continue;
        }
        nn::RecurrentState state;
        for (int64_t t = 0; t < x.size(0); ++t) state = cell(select(x, 0, t), state, t);
      }
    };
    nn::Module& module = of_steps ? static_cast<nn::Module&>(cell) : layer;
    nn::RecurrentWeights& w = of_steps ? cell.weights : layer.weights[0];
    module.eval();
    nn::recompute_population_statistics(module, forward);
    CHECK_FALSE(module.training());
    check_close(w.running_mean[0].tensor(), expected_mean, f32_sum);
    check_close(w.running_var[0].tensor(), expected_var, f32_sum);
    CHECK(norm_of(w.running_mean[1].tensor()) > 1e-3);
    CHECK(norm_of(w.running_mean[2].tensor()) > 1e-3);
    const nn::StateDict before = snapshot(module);
    // A pass that throws, and one without data, leave them alone; so does evaluation.
    CHECK_THROWS(nn::recompute_population_statistics(module, [&] {
      forward();
      throw Error("stop");
    }));
    CHECK(same_state(before, snapshot(module)));
    nn::recompute_population_statistics(module, [] {});
    CHECK(same_state(before, snapshot(module)));
    forward();
    CHECK(same_state(before, snapshot(module)));
    // A pass over short sequences leaves the later rows as they are.
    nn::recompute_population_statistics(module, [&] {
      if (of_steps)
        cell(select(batches[1], 0, 0), {}, 0);
      else
        layer(slice(batches[1], 0, 0, 1));
    });
    const std::vector<double> now = values(w.running_mean[0].tensor());
    CHECK(std::abs(now[0] - expected_mean[0]) > 1e-4);
    for (size_t i = 16; i < 48; ++i) CHECK(difference(now[i], expected_mean[i]) < f32_sum);
  }
}

TEST_CASE("recurrent batch norm: a population pass has no dropout and reaches layers inside a model") {
  struct Model : nn::Module {
    nn::GRU gru;
    nn::Linear head{4, 2};
    explicit Model(double dropout) : gru({.input = 3, .hidden = 4, .layers = 2, .norm = "batch", .dropout = dropout, .max_steps = 4}) {}
    void members(nn::Visitor& v) override {
      v("gru", gru);
      v("head", head);
    }
  } model(0.9), plain(0);
  init(model, 1);
  init(plain, 1);
  const Tensor x = normal({4, 5, 3}, 1);
  for (Model* m : {&model, &plain}) nn::recompute_population_statistics(*m, [&] { m->gru(x); });
  const nn::RecurrentWeights &second = model.gru.weights[1], &expected = plain.gru.weights[1];
  for (size_t i = 0; i < 2; ++i) {
    CHECK(same_bits(second.running_mean[i].tensor(), expected.running_mean[i].tensor()));
    CHECK(norm_of(second.running_mean[i].tensor()) > 1e-4);
  }
  CHECK(model.gru.training());
  CHECK(max_difference(model.gru(x).y, plain.gru(x).y) > 1e-3);  // training drops again
}

TEST_CASE("recurrent batch norm: warnings of an evaluation with the wrong statistics") {
  const nn::RecurrentLayerOptions options{.input = 3, .hidden = 4, .norm = "batch", .max_steps = 6};
  nn::LSTM layer(options);
  nn::GRUCell cell(options);
  init(layer, 1);
  init(cell, 1);
  const Tensor x = normal({4, 3, 3}, 1);
  const auto warnings = [](auto&& f) {
    const CatchWarnings caught;
    f();
    std::string all;
    for (const std::string& text : caught.texts()) all += text;
    return all;
  };
  CHECK(warnings([&] { layer(x); }) == "");
  CHECK(warnings([&] { nn::recompute_population_statistics(layer, [&] { layer(x); }); }) == "");
  CHECK_THAT(warnings([&] {
               const NoGrad no_grad;
               layer(x);
             }),
             contains("[lstm] LSTM(3 -> 4, norm batch): in training mode while no gradients are recorded"));
  layer.eval();
  CHECK(warnings([&] { layer(x); }) == "");
  // Two steps more than training had.
  CHECK_THAT(warnings([&] {
               layer(normal({9, 3, 3}, 2));
             }),
             contains("[lstm] LSTM(3 -> 4, norm batch): evaluated at step 5, which no training batch has had"));
  cell.eval();
  CHECK_THAT(warnings([&] { cell(select(x, 0, 0)); }), contains("[gru] GRUCell(3 -> 4, norm batch): evaluated at step 0"));
  // Other norms have nothing to warn of.
  nn::LSTM other({.input = 3, .hidden = 4, .norm = "layer"});
  init(other, 1);
  CHECK(warnings([&] {
          const NoGrad no_grad;
          other(x);
        }) == "");
}
