// recurrent(): what may be asked of it. recurrent_pass.h does it.

#include <lamina/ops/recurrent.h>

#include <utility>
#include <vector>

#include "ops/norm_support.h"
#include "ops/recurrent_pass.h"

namespace lamina {

using namespace ops;

namespace {

constexpr const char* op = "recurrent";

const char* name(RecurrentCell cell) {
  switch (cell) {
    case RecurrentCell::lstm: return "LSTM";
    case RecurrentCell::gru: return "GRU";
    case RecurrentCell::rnn: break;
  }
  return "RNN";
}

const char* name(RecurrentNorm norm) {
  switch (norm) {
    case RecurrentNorm::none: return "none";
    case RecurrentNorm::layer: return "layer";
    case RecurrentNorm::layer_cell: return "layer_cell";
    case RecurrentNorm::layer_carry: return "layer_carry";
    case RecurrentNorm::layer_gates: return "layer_gates";
    case RecurrentNorm::rms: return "rms";
    case RecurrentNorm::batch: break;
  }
  return "batch";
}

kernels::Cell kernel_cell(RecurrentCell cell) {
  switch (cell) {
    case RecurrentCell::lstm: return kernels::Cell::lstm;
    case RecurrentCell::gru: return kernels::Cell::gru;
    case RecurrentCell::rnn: break;
  }
  return kernels::Cell::rnn;
}

kernels::RecurrentSpec spec_of(const RecurrentOptions& options, int64_t hidden) {
  using kernels::TermNorm;
  kernels::RecurrentSpec spec{.cell = kernel_cell(options.cell), .hidden = hidden, .eps = options.eps};
  const RecurrentNorm norm = options.norm;
  const bool lstm = options.cell == RecurrentCell::lstm;
  if (norm == RecurrentNorm::layer || norm == RecurrentNorm::layer_carry || norm == RecurrentNorm::rms) spec.norm = TermNorm::terms;
  if (norm == RecurrentNorm::layer_gates) spec.norm = TermNorm::gates;
  if (norm == RecurrentNorm::batch) spec.norm = TermNorm::columns;
  spec.normalise_c = lstm && norm != RecurrentNorm::none;
  spec.carry = norm == RecurrentNorm::layer_carry || norm == RecurrentNorm::layer_gates;
  spec.centre = norm != RecurrentNorm::rms;
  spec.given = norm == RecurrentNorm::batch && !options.training;
  return spec;
}

void check_options(const RecurrentOptions& options) {
  const RecurrentNorm norm = options.norm;
  const bool lstm_only = norm == RecurrentNorm::layer_cell || norm == RecurrentNorm::layer_carry || norm == RecurrentNorm::layer_gates;
  if (lstm_only && options.cell != RecurrentCell::lstm)
    fail(op, "norm: expected none, layer, rms or batch, got {} ({} has no cell state to normalise)", name(norm),
         options.cell == RecurrentCell::gru ? "a GRU" : "an RNN");
  check_eps(op, options.eps);
  if (!(options.momentum >= 0 && options.momentum <= 1)) fail(op, "momentum: expected a number in [0, 1], got {}", options.momentum);
}

/// A parameter that must be there or must not.
void check_gain(const char* argument, const Tensor& gain, bool present, const RecurrentOptions& options) {
  if (present && !gain.defined()) fail(op, "{}: expected a tensor, got an undefined one (norm {} has it)", argument, name(options.norm));
  if (!present && gain.defined())
    fail(op, "{}: expected none, got {} (norm {} of {} has no such parameter)", argument, gain.shape(), name(options.norm), name(options.cell));
}

void check_weight(const char* argument, const Tensor& weight, const Tensor& x) {
  if (!weight.defined()) fail(op, "{}: expected a tensor, got an undefined one", argument);
  if (weight.rank() != 2) fail(op, "{}: expected 2 axes, got {}", argument, weight.shape());
  check_companion(op, argument, weight, weight.shape(), x);
}

void check_parameters(const Tensor& x, const RecurrentParameters& p, const RecurrentOptions& options, const kernels::RecurrentSpec& spec) {
  using kernels::TermNorm;
  const int64_t hidden = spec.hidden, width = spec.width();
  if (p.weight_hh.shape() != Shape{width, hidden})
    fail(op, "weight_hh: expected [{0} H, H] ({1} has {0} {2}), got {3}", spec.gates(), name(options.cell), spec.gates() == 1 ? "gate" : "gates",
         p.weight_hh.shape());
  check_companion(op, "weight_ih", p.weight_ih, {width, x.size(2)}, x);
  check_companion(op, "bias_ih", p.bias_ih, {width}, x);
  check_companion(op, "bias_hh", p.bias_hh, {width}, x);
  check_gain("gain_ih", p.gain_ih, spec.norm == TermNorm::terms || spec.norm == TermNorm::columns, options);
  check_gain("gain_hh", p.gain_hh, spec.norm != TermNorm::none, options);
  check_gain("gain_c", p.gain_c, spec.normalise_c, options);
  if (!spec.normalise_c) check_gain("bias_c", p.bias_c, false, options);
  check_companion(op, "gain_ih", p.gain_ih, {width}, x);
  check_companion(op, "gain_hh", p.gain_hh, {width}, x);
  check_companion(op, "gain_c", p.gain_c, {hidden}, x);
  check_companion(op, "bias_c", p.bias_c, {hidden}, x);
}

void check_lengths(const Tensor& x, std::span<const int64_t> lengths) {
  if (lengths.empty()) return;
  if (static_cast<int64_t>(lengths.size()) != x.size(1))
    fail(op, "lengths: expected {}, one for each sequence, got {} (x is {})", x.size(1), lengths.size(), x.shape());
  for (size_t n = 0; n < lengths.size(); ++n)
    if (lengths[n] < 0 || lengths[n] > x.size(0))
      fail(op, "lengths: expected each in [0, {}], got {} for sequence {} (x is {})", x.size(0), lengths[n], n, x.shape());
}

void check_statistics(const Tensor& x, const RecurrentStatistics& s, const RecurrentOptions& options, const kernels::RecurrentSpec& spec) {
  const bool batch = options.norm == RecurrentNorm::batch, lstm = options.cell == RecurrentCell::lstm;
  const std::pair<const char*, const Tensor*> all[] = {{"mean_ih", &s.mean_ih}, {"var_ih", &s.var_ih}, {"mean_hh", &s.mean_hh},
                                                       {"var_hh", &s.var_hh},   {"mean_c", &s.mean_c}, {"var_c", &s.var_c}};
  for (const auto& [argument, value] : all) {
    const bool of_c = value == &s.mean_c || value == &s.var_c;
    const bool wanted = batch && (!of_c || lstm) && (s.mean_ih.defined() || !options.training);
    if (!wanted && value->defined())
      fail(op, "{}: expected none, got {} (norm {} of {})", argument, value->shape(), name(options.norm), name(options.cell));
    if (!wanted) continue;
    if (!value->defined()) fail(op, "{}: expected running statistics [steps, {}], got an undefined tensor", argument, of_c ? "H" : "G H");
    const int64_t steps = s.mean_ih.rank() == 2 ? s.mean_ih.size(0) : 0;
    if (steps < 1) fail(op, "mean_ih: expected [steps, {}] with at least one step, got {}", spec.width(), s.mean_ih.shape());
    check_companion(op, argument, *value, {steps, of_c ? spec.hidden : spec.width()}, x);
  }
}

/// Batch statistics need two sequences at every step.
void check_alive(const RecurrentPlan& plan) {
  for (int64_t step = 0; step < plan.steps(); ++step)
    if (const int64_t alive = plan.alive[static_cast<size_t>(step)]; alive < 2)
      fail(op, "norm batch: expected at least 2 sequences at every step in training, got {} at step {}", alive, step);
}

}  // namespace

int64_t gate_count(RecurrentCell cell) { return kernels::RecurrentSpec{.cell = kernel_cell(cell)}.gates(); }

RecurrentResult recurrent(const Tensor& x, const Tensor& h0, const Tensor& c0, const RecurrentParameters& p, const RecurrentOptions& options,
                          std::span<const int64_t> lengths, RecurrentStatistics statistics) {
  if (!x.defined()) fail(op, "x: expected a tensor, got an undefined one");
  if (!is_float(x.dtype())) fail_dtype(op, "f32 or f64", x.dtype());
  if (x.rank() != 3) fail(op, "x: expected [T, N, C], got {}", x.shape());
  check_options(options);
  check_weight("weight_ih", p.weight_ih, x);
  check_weight("weight_hh", p.weight_hh, x);
  const kernels::RecurrentSpec spec = spec_of(options, p.weight_hh.size(1));
  check_parameters(x, p, options, spec);
  const bool lstm = options.cell == RecurrentCell::lstm;
  if (!lstm && c0.defined()) fail(op, "c0: expected none, got {} ({} has no cell state)", c0.shape(), name(options.cell));
  check_companion(op, "h0", h0, {x.size(1), spec.hidden}, x);
  check_companion(op, "c0", c0, {x.size(1), spec.hidden}, x);
  check_lengths(x, lengths);
  check_statistics(x, statistics, options, spec);

  const RecurrentInputs inputs{{x, h0, c0, p.weight_ih, p.weight_hh, p.bias_ih, p.bias_hh, p.gain_ih, p.gain_hh, p.gain_c, p.bias_c}};
  const RecurrentCall call{spec, std::make_shared<RecurrentPlan>(x.size(0), x.size(1), lengths, options.reverse), options.training, options.momentum};
  if (options.norm == RecurrentNorm::batch && options.training) check_alive(*call.plan);

  const bool keep = autograd::recording(inputs.tensors);
  RecurrentOutcome outcome = recurrent_forward(call, inputs, statistics, keep);
  if (!keep) return outcome.result;
  RecurrentInputs wanted = inputs;
  if (!(x.device().is_cpu() && spec.makes_gates_anew())) {
    wanted[RecurrentInputs::bias_ih] = Tensor();
    if (options.cell != RecurrentCell::gru || spec.norm != kernels::TermNorm::terms) wanted[RecurrentInputs::bias_hh] = Tensor();
  }
  if (!p.weight_ih.requires_grad()) wanted[RecurrentInputs::x] = Tensor();
  std::vector<Tensor> saved(wanted.tensors.begin(), wanted.tensors.end());
  saved.insert(saved.end(), outcome.trace.tensors.begin(), outcome.trace.tensors.end());
  std::vector<Tensor> outputs{outcome.result.y, outcome.result.h};
  if (lstm) outputs.push_back(outcome.result.c);
  outputs = autograd::record_many(op, inputs.tensors, std::move(outputs), autograd::save(saved),
                                  [call](autograd::Backward& b) { recurrent_backward(call, b); });
  return {outputs[0], outputs[1], lstm ? outputs[2] : Tensor()};
}

}  // namespace lamina
