// The parameters of recurrent layers: which there are, how they start, and batch norm's statistics.

#include "nn/rnn_weights.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include <lamina/autograd/graph.h>
#include <lamina/core/warning.h>
#include <lamina/ops/elementwise.h>
#include <lamina/ops/reduce.h>
#include <lamina/ops/shape_ops.h>

#include "core/format.h"
#include "nn/norm_pass.h"

namespace lamina::nn {

namespace {

struct Has {
  bool ih, hh, c;
};

/// Which gains a norm has: the table in <lamina/ops/recurrent.h>.
Has gains_of(RecurrentNorm norm, RecurrentCell cell) {
  const bool c = cell == RecurrentCell::lstm;
  switch (norm) {
    case RecurrentNorm::none: return {false, false, false};
    case RecurrentNorm::layer_cell: return {false, false, c};
    case RecurrentNorm::layer_gates: return {false, true, c};
    case RecurrentNorm::layer:
    case RecurrentNorm::layer_carry:
    case RecurrentNorm::rms:
    case RecurrentNorm::batch: break;
  }
  return {true, true, c};
}

/// Each gate's block [H, columns] of a weight as a weight of its own.
Init weight_init(const std::string& text, int64_t gates, int64_t hidden, int64_t columns) {
  if (text == "pytorch") return init::uniform(1 / std::sqrt(static_cast<double>(hidden)));
  Init init = init::parse(text, {hidden, columns});
  init.blocks = gates;
  return init;
}

/// mean and var move towards the batch's m and v by 1 / count, where the batch has any (v >= 0).
void average(Tensor mean, Tensor var, Tensor count, const Tensor& m, const Tensor& v) {
  const Tensor touched = ge(v, 0.0).cast(v.dtype());
  count.copy_(count + touched);
  const Tensor part = touched / clamp(count, 1.0, std::numeric_limits<double>::infinity());
  mean.copy_(mean + part * (m - mean));
  var.copy_(var + part * (v - var));
}

// Below these, the sizes of parameters can be counted; above, weights [4 H, H] fit into no memory, and slips of the pen would take hours to notice.
constexpr int64_t most_hidden = (int64_t{1} << 31) - 1, most_layers = 10000;

constexpr const char* sums[] = {"ih", "hh", "c"};

}  // namespace

const char* cell_name(RecurrentCell cell) { return cell == RecurrentCell::lstm ? "lstm" : cell == RecurrentCell::gru ? "gru" : "rnn"; }
const char* layer_name(RecurrentCell cell) { return cell == RecurrentCell::lstm ? "LSTM" : cell == RecurrentCell::gru ? "GRU" : "RNN"; }

std::optional<RecurrentNorm> recurrent_norm(RecurrentCell cell, const NormSpec& norm) {
  using Kind = NormSpec::Kind;
  using Variant = NormSpec::Variant;
  if (norm.kind == Kind::none) return RecurrentNorm::none;
  if (norm.weight || norm.mean_only || norm.partial < 1) return std::nullopt;
  if (norm.kind == Kind::batch) return RecurrentNorm::batch;
  if (norm.kind == Kind::rms) return RecurrentNorm::rms;
  if (norm.kind != Kind::layer) return std::nullopt;
  if (norm.variant == Variant::standard) return RecurrentNorm::layer;
  if (cell != RecurrentCell::lstm) return std::nullopt;
  return norm.variant == Variant::cell    ? RecurrentNorm::layer_cell
         : norm.variant == Variant::carry ? RecurrentNorm::layer_carry
                                          : RecurrentNorm::layer_gates;
}

void check_options(RecurrentCell cell, const RecurrentLayerOptions& o) {
  const char* name = cell_name(cell);
  for (const auto& [what, size] : {std::pair{"input", o.input}, {"hidden", o.hidden}, {"layers", o.layers}})
    if (size < 1) fail_input(name, "{}: expected a size >= 1, got {}", what, size);
  if (o.hidden > most_hidden) fail_input(name, "hidden: expected a size <= {}, got {}", most_hidden, o.hidden);
  if (o.layers > most_layers) fail_input(name, "layers: expected a number <= {}, got {}", most_layers, o.layers);
  if (!(o.dropout >= 0 && o.dropout <= 1)) fail_input(name, "dropout: expected a probability in [0, 1], got {}", o.dropout);
  if (!(o.momentum >= 0 && o.momentum <= 1)) fail_input(name, "momentum: expected a value in [0, 1], got {}", o.momentum);
  if (const double eps = o.eps.value_or(0); !(eps >= 0 && std::isfinite(eps))) fail_input(name, "eps: expected a value >= 0, got {}", eps);
  if (!std::isfinite(o.gain.value_or(0))) fail_input(name, "gain: expected a finite value, got {}", *o.gain);
  if (!std::isfinite(o.forget_bias.value_or(0))) fail_input(name, "forget_bias: expected a finite value, got {}", *o.forget_bias);
  if (o.forget_bias && cell != RecurrentCell::lstm) fail_input(name, "forget_bias: {} has no forget gate", layer_name(cell));
  if (o.forget_bias && !o.bias) fail_input(name, "forget_bias: the layer has no biases");
  const std::optional<RecurrentNorm> norm = recurrent_norm(cell, o.norm);
  if (!norm)
    fail_input(name, "norm: {} has no '{}'; expected one of {}", layer_name(cell), o.norm.str(), fmt::join(Recurrent::norm_names(cell), ", "));
  if (norm == RecurrentNorm::batch && o.max_steps < 1)
    fail_input(name, "max_steps: expected for how many steps 'batch' keeps statistics of their own, got {}", o.max_steps);
}

RecurrentOptions op_options(RecurrentCell cell, const RecurrentLayerOptions& o, bool training) {
  return {.cell = cell,
          .norm = recurrent_norm(cell, o.norm).value(),
          .eps = o.eps.value_or(RecurrentOptions{}.eps),
          .training = training,
          .momentum = o.momentum};
}

RecurrentWeights::RecurrentWeights(RecurrentCell cell, int64_t input, const RecurrentLayerOptions& o) : forget_bias_(o.forget_bias) {
  const RecurrentNorm norm = recurrent_norm(cell, o.norm).value();
  const Has has = gains_of(norm, cell);
  const int64_t gates = gate_count(cell), rows = gates * o.hidden;
  const auto weight = [&](int64_t columns, Parameter& plain, WeightNorm& normed) {
    const Init init = weight_init(o.init, gates, o.hidden, columns);
    if (o.norm.weight)
      normed = WeightNorm({rows, columns}, init);
    else
      plain = Parameter({rows, columns}, init);
  };
  weight(input, weight_ih, norm_ih);
  weight(o.hidden, weight_hh, norm_hh);
  if (o.bias) {
    const Init init = o.init == "pytorch" && !has.hh ? init::uniform(1 / std::sqrt(static_cast<double>(o.hidden))) : init::zeros();
    bias_ih = Parameter({rows}, init);
    bias_hh = Parameter({rows}, init);
    set_forget_bias();  // for an initialiser that draws nothing
  }
  const Init gain = init::constant(o.gain.value_or(norm == RecurrentNorm::batch ? 0.1 : 1.0));
  if (has.ih) gain_ih = Parameter({rows}, gain);
  if (has.hh) gain_hh = Parameter({rows}, gain);
  if (has.c) {
    gain_c = Parameter({o.hidden}, gain);
    bias_c = Parameter({o.hidden}, init::zeros());
  }
  if (norm != RecurrentNorm::batch) return;
  for (size_t i = 0; i < (has.c ? 3 : 2); ++i) {
    const Shape shape{o.max_steps, i < 2 ? rows : o.hidden};
    running_mean[i] = Buffer(Tensor::zeros(shape));
    running_var[i] = Buffer(Tensor::ones(shape));
  }
}

void RecurrentWeights::members(Visitor& v, const std::string& suffix) {
  v("weight_ih" + suffix, weight_ih);
  norm_ih.members(v, "weight_ih" + suffix);
  v("weight_hh" + suffix, weight_hh);
  norm_hh.members(v, "weight_hh" + suffix);
  v("bias_ih" + suffix, bias_ih);
  v("bias_hh" + suffix, bias_hh);
  v("gain_ih" + suffix, gain_ih);
  v("gain_hh" + suffix, gain_hh);
  v("gain_c" + suffix, gain_c);
  v("bias_c" + suffix, bias_c);
  for (size_t i = 0; i < 3; ++i) {
    v(fmt::format("running_mean_{}{}", sums[i], suffix), running_mean[i]);
    v(fmt::format("running_var_{}{}", sums[i], suffix), running_var[i]);
  }
}

void RecurrentWeights::drawn() {
  norm_ih.drawn();
  norm_hh.drawn();
  set_forget_bias();
}

// Both biases are added: a forget bias in each would count twice.
void RecurrentWeights::set_forget_bias() {
  if (!forget_bias_ || !bias_ih.ready()) return;
  for (Parameter* bias : {&bias_ih, &bias_hh}) {
    std::vector<double> values = bias->value().detach().cast(DType::f64).to_vector<double>();
    const auto hidden = static_cast<int64_t>(values.size()) / 4;
    std::fill_n(values.begin() + hidden, hidden, bias == &bias_ih ? *forget_bias_ : 0.0);
    bias->set(Tensor::from(values, bias->shape()));
  }
}

RecurrentResult RecurrentWeights::run(const Tensor& x, const RecurrentState& start, const RecurrentOptions& options, std::span<const int64_t> lengths,
                                      int64_t step) {
  const auto weight = [](const Parameter& plain, const WeightNorm& normed) { return normed.defined() ? normed.value() : plain.value(); };
  const RecurrentParameters parameters{weight(weight_ih, norm_ih), weight(weight_hh, norm_hh), bias_ih, bias_hh, gain_ih, gain_hh, gain_c, bias_c};
  if (!running_mean[0].defined()) return recurrent(x, start.h, start.c, parameters, options, lengths);

  const int64_t steps = running_mean[0].tensor().size(0);
  const int64_t begin = step < 0 ? 0 : std::min(step, steps - 1), end = step < 0 ? steps : begin + 1;
  const auto rows = [&](const Tensor& t) { return t.defined() ? slice(t, 0, begin, end) : t; };  // shares memory
  const auto call = [&](const auto& mean, const auto& var, const RecurrentOptions& how) {
    return recurrent(x, start.h, start.c, parameters, how, lengths, {mean(0), var(0), mean(1), var(1), mean(2), var(2)});
  };
  if (!population_pass_ || !options.training)
    return call([&](size_t i) { return rows(running_mean[i].tensor()); }, [&](size_t i) { return rows(running_var[i].tensor()); }, options);

  // The batch's own statistics, by a momentum of 1, with a row for every step; a step that the batch does not have keeps its impossible variance.
  const int64_t own_rows = step < 0 ? std::max(steps, x.size(0)) : 1;
  std::vector<Tensor> mean(3), var(3);
  for (size_t i = 0; i < counts_.size(); ++i) {
    const Tensor& like = running_mean[i].tensor();
    const Shape shape{own_rows, like.size(1)};
    mean[i] = Tensor::zeros(shape, like.dtype(), like.device());
    var[i] = Tensor::full(shape, -1, like.dtype(), like.device());
  }
  RecurrentOptions own = options;
  own.momentum = 1;
  const RecurrentResult result = call([&](size_t i) { return mean[i]; }, [&](size_t i) { return var[i]; }, own);
  const NoGrad no_grad;
  for (size_t i = 0; i < counts_.size(); ++i) {
    const auto add = [&](int64_t to, int64_t from, int64_t count) {
      const auto part = [&](const Tensor& t, int64_t first) { return slice(t, 0, first, first + count); };
      average(part(running_mean[i].tensor(), to), part(running_var[i].tensor(), to), part(counts_[i], to), part(mean[i], from), part(var[i], from));
    };
    add(begin, 0, end - begin);
    for (int64_t late = end - begin; late < own_rows; ++late) add(end - 1, late, 1);  // the last row serves them all
  }
  return result;
}

void RecurrentWeights::warn_of_wrong_statistics(const char* op, const Module& layer, int64_t steps) {
  if (!running_mean[0].defined()) return;
  if (layer.training()) {
    if (!grad_enabled() && !population_pass_) warn_of_training_mode(op, layer);
    return;
  }
  steps = std::min(steps, running_mean[0].tensor().size(0));
  std::atomic_ref evaluated(evaluated_);
  int64_t before = evaluated;
  do {
    if (steps <= before) return;  // looking costs a wait for the device
  } while (!evaluated.compare_exchange_weak(before, steps));
  const NoGrad no_grad;
  const auto holds_only = [&](const Buffer& buffer, double value) { return max(abs(select(buffer.tensor(), 0, steps - 1) - value)).item() == 0; };
  if (holds_only(running_mean[0], 0) && holds_only(running_var[0], 1))
    warn(op,
         fmt::format("{}: evaluated at step {}, which no training batch has had: mean 0 and deviation 1 of its start normalise nothing; max_steps "
                     "should be the steps of training",
                     layer.title(), steps - 1));
}

void RecurrentWeights::begin_population_statistics() {
  if (!running_mean[0].defined() || population_pass_) return;
  population_pass_ = true;
  for (size_t i = 0; i < 3 && running_mean[i].defined(); ++i) {
    const Tensor& mean = running_mean[i].tensor();
    former_mean_.push_back(mean.clone());
    former_var_.push_back(running_var[i].tensor().clone());
    counts_.push_back(Tensor::zeros(mean.shape(), mean.dtype(), mean.device()));
    running_mean[i].reset();
    running_var[i].reset();
  }
}

void RecurrentWeights::end_population_statistics(bool keep) {
  if (!population_pass_) return;
  population_pass_ = false;
  const NoGrad no_grad;
  for (size_t i = 0; i < counts_.size(); ++i) {
    Tensor &mean = running_mean[i].tensor(), &var = running_var[i].tensor();
    const Tensor seen = gt(keep ? counts_[i] : Tensor::zeros(mean.shape(), mean.dtype(), mean.device()), 0.0);
    mean.copy_(where(seen, mean, former_mean_[i]));
    var.copy_(where(seen, var, former_var_[i]));
  }
  former_mean_.clear();
  former_var_.clear();
  counts_.clear();
}

}  // namespace lamina::nn
