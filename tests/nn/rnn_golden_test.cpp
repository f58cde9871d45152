// Recurrent layers against PyTorch's, and against the papers' equations where PyTorch has no such layer: tests/golden/rnn_*.safetensors.
#include <lamina/nn/rnn.h>

#include <lamina/ops/reduce.h>

#include "nn/support.h"
#include "support/golden.h"

using namespace lamina;
using namespace lamina::test;

namespace {

// Some hundred f64 operations in a row against the same in another order.
constexpr double f64_chain = 1e-11;
// The golden inputs are exact in f32; gradients through five steps and two layers, or through normalisers of rows of a few values.
constexpr double f32_chain = 2e-4;

constexpr std::pair<RecurrentCell, const char*> cells[] = {{RecurrentCell::lstm, "lstm"}, {RecurrentCell::gru, "gru"}, {RecurrentCell::rnn, "rnn"}};

/// Loads `golden` values under their names over what the layer starts with.
void load(nn::Module& layer, const std::map<std::string, Tensor>& golden) {
  init(layer, 1);
  nn::StateDict state;
  for (const auto& [name, value] : snapshot(layer)) {
    const bool buffer = name.starts_with("running_");
    if (!buffer) REQUIRE(golden.contains(name));
    state.emplace_back(name, buffer ? value : golden.at(name));
  }
  layer.load_state_dict(state);
}

struct Pass {
  std::map<std::string, Tensor> given;  // x, h0, c0

  explicit Pass(const std::map<std::string, Tensor>& golden) {
    for (const char* name : {"x", "h0", "c0"})
      if (golden.contains(name)) given[name] = golden.at(name).clone().set_requires_grad();
  }
  Tensor operator[](const char* name) const { return given.contains(name) ? given.at(name) : Tensor(); }

  /// CHECKs the outputs, then the gradients of all inputs and parameters under the golden cotangents.
  void check(nn::Module& layer, std::map<std::string, Tensor> outputs, const std::map<std::string, Tensor>& golden, double tolerance) const {
    Tensor loss;
    for (const auto& [name, value] : outputs) {
      if (!value.defined()) continue;
      INFO(name);
      check_close(value, golden.at(name), tolerance);
      const Tensor part = sum(value * golden.at("cotangent." + name));
      loss = loss.defined() ? loss + part : part;
    }
    loss.backward();
    std::map<std::string, Tensor> leaves = given;
    for (const auto& [path, parameter] : layer.named_parameters()) leaves[path] = parameter->value();
    for (const auto& [name, leaf] : leaves) {
      INFO("gradient of " << name);
      const Tensor& expected = golden.at("d" + name);
      double scale = 1;
      for (const double v : values(expected)) scale = std::max(scale, std::abs(v));
      check_close(leaf.grad(), expected, tolerance * scale);
      CHECK(norm_of(leaf.grad()) > 1e-6);
    }
  }
};

template <class Layer>
void prepare(Layer& layer, const std::map<std::string, Tensor>& golden, DType dtype) {
  layer.cast(dtype);
  load(layer, golden);
}

}  // namespace

TEST_CASE("LSTM, GRU and RNN give PyTorch's values and gradients: layers, directions, lengths, batch first") {
  struct Case {
    const char* name;
    nn::RecurrentLayerOptions options;
  };
  const Case cases[] = {{"plain", {}},
                        {"no_bias", {.bias = false, .bidirectional = true}},
                        {"deep", {.layers = 2, .bidirectional = true}},
                        {"batch_first", {.layers = 2, .batch_first = true}}};
  for (const auto& [cell, cell_name] : cells) {
    const Golden file(std::string("rnn_") + cell_name);
    for (const Case& c : cases)
      for (const DType dtype : {DType::f64, DType::f32}) {
        INFO(cell_name << ", " << c.name << ", " << to_string(dtype));
        const auto golden = file.below(std::string(c.name) + ".", dtype);
        nn::RecurrentLayerOptions options = c.options;
        options.input = 3;
        options.hidden = 4;
        nn::Recurrent layer(cell, options);
        prepare(layer, golden, dtype);
        std::vector<int64_t> lengths;
        if (golden.contains("lengths")) lengths = golden.at("lengths").to_vector<int64_t>();
        const Pass pass(golden);
        const nn::RecurrentOutput out = layer(pass["x"], {pass["h0"], pass["c0"]}, lengths);
        pass.check(layer, {{"y", out.y}, {"h", out.state.h}, {"c", out.state.c}}, golden, dtype == DType::f64 ? f64_chain : f32_chain);
      }
  }
}

TEST_CASE("LSTMCell, GRUCell and RNNCell give PyTorch's values and gradients") {
  for (const auto& [cell, cell_name] : cells)
    for (const DType dtype : {DType::f64, DType::f32}) {
      INFO(cell_name << ", " << to_string(dtype));
      const auto golden = Golden(std::string("rnn_") + cell_name).below("cell.", dtype);
      nn::RecurrentStep layer(cell, {.input = 3, .hidden = 4});
      prepare(layer, golden, dtype);
      const Pass pass(golden);
      const nn::RecurrentState next = layer(pass["x"], {pass["h0"], pass["c0"]});
      pass.check(layer, {{"h", next.h}, {"c", next.c}}, golden, dtype == DType::f64 ? f64_chain : f32_chain);
    }
}

TEST_CASE("PyTorch's state dicts load as they are") {
  for (const auto& [cell, cell_name] : cells) {
    INFO(cell_name);
    nn::Recurrent layer(cell, {.input = 3, .hidden = 4, .layers = 2, .dropout = 0.5, .bidirectional = true});
    nn::StateDict state;
    for (const auto& [name, value] : Golden(std::string("rnn_") + cell_name).below("deep."))
      if (name.starts_with("weight_") || name.starts_with("bias_")) state.emplace_back(name, value);
    CHECK(state.size() == 16);
    layer.load_state_dict(state);
    for (const auto& [name, value] : state)
      for (const auto& [mine, own] : layer.state_dict())
        if (mine == name) check_close(own, value.cast(DType::f32), exact);
  }
}

TEST_CASE("normalised LSTM, GRU and RNN give the papers' values and gradients") {
  for (const auto& [cell, cell_name] : cells) {
    const Golden file(std::string("rnn_") + cell_name + "_norms");
    for (const std::string& norm : nn::Recurrent::norm_names(cell)) {
      if (norm == "none" || norm == "weight") continue;
      for (const DType dtype : {DType::f64, DType::f32}) {
        INFO(cell_name << ", " << norm << ", " << to_string(dtype));
        const auto golden = file.below(norm + ".", dtype);
        const int64_t steps = golden.at("x").size(0), hidden = golden.at("h0").size(2);
        nn::Recurrent layer(cell, {.input = 3, .hidden = hidden, .norm = norm, .max_steps = steps});
        prepare(layer, golden, dtype);
        const Pass pass(golden);
        const nn::RecurrentOutput out = layer(pass["x"], {pass["h0"], pass["c0"]});
        pass.check(layer, {{"y", out.y}, {"h", out.state.h}, {"c", out.state.c}}, golden, dtype == DType::f64 ? f64_chain : f32_chain);
        size_t buffers = 0;
        for (const auto& [name, buffer] : layer.named_buffers()) {
          INFO(name);
          check_close(buffer->tensor(), golden.at(name), dtype == DType::f64 ? f64_chain : f32_chain);
          ++buffers;
        }
        CHECK(buffers == (norm != "batch" ? 0U : cell == RecurrentCell::lstm ? 6U : 4U));
      }
    }
  }
}
