// Recurrent layers: stacks of the fused op, and its single steps.

#include <lamina/nn/rnn.h>

#include <lamina/ops/shape_ops.h>

#include "core/format.h"
#include "nn/rnn_weights.h"

namespace lamina::nn {

namespace {

constexpr const char* suffixes[] = {"", "_reverse"};

/// "28 -> 128, 2 layers, bidirectional, norm layer, no bias"
std::string describe_options(const RecurrentLayerOptions& o) {
  const std::string layers = o.layers > 1 ? fmt::format(", {} layers", o.layers) : "";
  const std::string norm = o.norm == NormSpec() ? "" : fmt::format(", norm {}", o.norm.str());
  return fmt::format("{} -> {}{}{}{}{}{}{}", o.input, o.hidden, layers, o.bidirectional ? ", bidirectional" : "", norm, o.bias ? "" : ", no bias",
                     o.batch_first ? ", batch first" : "", o.learn_state ? ", learned state" : "");
}

void check_state(const char* op, const char* name, const Tensor& given, const Shape& expected, const Tensor& x, const Module& layer) {
  if (given.defined() && given.shape() != expected)
    fail(op, "{}: expected {}, got {} (x is {}, in {})", name, expected, given.shape(), x.shape(), layer.describe());
}

void check_state(const char* op, const RecurrentState& state, RecurrentCell cell, const Shape& expected, const Tensor& x, const Module& layer) {
  check_state(op, "h", state.h, expected, x, layer);
  if (state.c.defined() && cell != RecurrentCell::lstm) fail(op, "c: {} has no cell state", layer.describe());
  check_state(op, "c", state.c, expected, x, layer);
}

/// Row `index` of a learned state, for each case; undefined if there is none.
Tensor learned(const Parameter& state, int64_t index, int64_t batch) {
  if (!state.defined()) return {};
  return expand(slice(state.value(), 0, index, index + 1), {batch, state.shape().size(1)});
}

}  // namespace

RecurrentState RecurrentState::detach() const { return {h.defined() ? h.detach() : h, c.defined() ? c.detach() : c}; }

Recurrent::Recurrent(RecurrentCell cell, const RecurrentLayerOptions& options)
    : cell_(cell), options_((check_options(cell, options), options)), dropout_(options.dropout) {
  const int64_t directions = options.bidirectional ? 2 : 1;
  for (int64_t layer = 0; layer < options.layers; ++layer)
    for (int64_t direction = 0; direction < directions; ++direction)
      weights.emplace_back(cell, layer == 0 ? options.input : directions * options.hidden, options);
  if (!options.learn_state) return;
  const Shape shape{options.layers * directions, options.hidden};
  h0 = Parameter(shape, init::zeros());
  if (cell == RecurrentCell::lstm) c0 = Parameter(shape, init::zeros());
}

std::vector<std::string> Recurrent::norm_names(RecurrentCell cell) {
  std::vector<std::string> result;
  for (const std::string& name : NormSpec::names())
    if (recurrent_norm(cell, name)) result.push_back(name);
  return result;
}

RecurrentState Recurrent::start_of(const RecurrentState& state, int64_t index, int64_t batch) const {
  const auto part = [&](const Tensor& given, const Parameter& parameter) {
    return given.defined() ? select(given, 0, index) : learned(parameter, index, batch);
  };
  return {part(state.h, h0), part(state.c, c0)};
}

RecurrentOutput Recurrent::operator()(const Tensor& x, const RecurrentState& state, std::span<const int64_t> lengths) {
  const char* op = cell_name(cell_);
  if (x.rank() != 3 || x.size(2) != options_.input)
    fail(op, "x: expected [{}, {}], got {} (in {})", options_.batch_first ? "N, T" : "T, N", options_.input, x.shape(), describe());
  const int64_t batch = x.size(options_.batch_first ? 0 : 1), directions = options_.bidirectional ? 2 : 1;
  check_state(op, state, cell_, {static_cast<int64_t>(weights.size()), batch, options_.hidden}, x, *this);
  weights[0].warn_of_wrong_statistics(op, *this, x.size(options_.batch_first ? 1 : 0));

  Tensor y = options_.batch_first ? transpose(x, 0, 1) : x;
  std::vector<Tensor> h, c;
  for (int64_t layer = 0; layer < options_.layers; ++layer) {
    if (layer > 0) y = dropout_(y);
    std::vector<Tensor> sides;
    for (int64_t direction = 0; direction < directions; ++direction) {
      const int64_t index = layer * directions + direction;
      RecurrentOptions how = op_options(cell_, options_, training());
      how.reverse = direction == 1;
      const RecurrentResult result = weights[static_cast<size_t>(index)].run(y, start_of(state, index, batch), how, lengths);
      sides.push_back(result.y);
      h.push_back(result.h);
      if (result.c.defined()) c.push_back(result.c);
    }
    y = directions == 1 ? sides[0] : concat(sides, 2);
  }
  if (options_.batch_first) y = transpose(y, 0, 1);
  return {y, {stack(h), c.empty() ? Tensor() : stack(c)}};
}

void Recurrent::members(Visitor& v) {
  const size_t directions = options_.bidirectional ? 2 : 1;
  for (size_t i = 0; i < weights.size(); ++i) weights[i].members(v, fmt::format("_l{}{}", i / directions, suffixes[i % directions]));
  v("h0", h0);
  v("c0", c0);
  if (options_.layers > 1 && options_.dropout > 0) v("dropout", dropout_);
}

void Recurrent::drawn() {
  for (RecurrentWeights& w : weights) w.drawn();
}

std::string Recurrent::describe() const { return fmt::format("{}({})", layer_name(cell_), describe_options(options_)); }

void Recurrent::begin_population_statistics() {
  for (RecurrentWeights& w : weights) w.begin_population_statistics();
}

void Recurrent::end_population_statistics(bool keep) {
  for (RecurrentWeights& w : weights) w.end_population_statistics(keep);
}

RecurrentStep::RecurrentStep(RecurrentCell cell, const RecurrentLayerOptions& options)
    : weights(cell, (check_options(cell, options), options.input), options), cell_(cell), options_(options) {
  if (options.layers > 1 || options.batch_first || options.dropout > 0 || options.bidirectional)
    fail_input(cell_name(cell), "layers, batch_first, dropout and bidirectional are for whole sequences, not for {}Cell", layer_name(cell));
  if (!options.learn_state) return;
  h0 = Parameter({1, options.hidden}, init::zeros());
  if (cell == RecurrentCell::lstm) c0 = Parameter({1, options.hidden}, init::zeros());
}

RecurrentState RecurrentStep::operator()(const Tensor& x, const RecurrentState& state, int64_t step) {
  const char* op = cell_name(cell_);
  if (x.rank() != 2 || x.size(1) != options_.input) fail(op, "x: expected [N, {}], got {} (in {})", options_.input, x.shape(), describe());
  if (step < 0) fail(op, "step: expected a number >= 0, got {} (in {})", step, describe());
  const int64_t batch = x.size(0);
  check_state(op, state, cell_, {batch, options_.hidden}, x, *this);
  weights.warn_of_wrong_statistics(op, *this, step + 1);
  const RecurrentState start{state.h.defined() ? state.h : learned(h0, 0, batch), state.c.defined() ? state.c : learned(c0, 0, batch)};
  const RecurrentResult result = weights.run(unsqueeze(x, 0), start, op_options(cell_, options_, training()), {}, step);
  return {result.h, result.c};
}

void RecurrentStep::members(Visitor& v) {
  weights.members(v, "");
  v("h0", h0);
  v("c0", c0);
}

std::string RecurrentStep::describe() const { return fmt::format("{}Cell({})", layer_name(cell_), describe_options(options_)); }

}  // namespace lamina::nn
