#pragma once
// The recurrent layers of <lamina/ops/recurrent.h> out of small ops, as plainly as their equations: what the fused op is held against.

#include <algorithm>
#include <vector>

#include <lamina/autograd/graph.h>
#include <lamina/ops/elementwise.h>
#include <lamina/ops/matmul.h>
#include <lamina/ops/norm.h>
#include <lamina/ops/recurrent.h>
#include <lamina/ops/shape_ops.h>

namespace lamina::test {

/// One step of one layer; running statistics are a row [W] each.
class OracleStep {
 public:
  OracleStep(const RecurrentParameters& p, const RecurrentOptions& options, const RecurrentStatistics& statistics)
      : p_(p), o_(options), s_(statistics), hidden_(p.weight_hh.size(1)) {}

  /// x [N, C], h and c [N, H]; h and c become the next ones.
  void operator()(const Tensor& x, Tensor& h, Tensor& c) const {
    const Tensor a_x = gates_norm(linear(x, p_.weight_ih), p_.gain_ih, s_.mean_ih, s_.var_ih);
    const Tensor a_h = gates_norm(linear(h, p_.weight_hh), p_.gain_hh, s_.mean_hh, s_.var_hh);
    switch (o_.cell) {
      case RecurrentCell::lstm: return lstm(a_x, a_h, h, c);
      case RecurrentCell::gru: return gru(a_x, a_h, h);
      case RecurrentCell::rnn: h = tanh(plus(a_x, p_.bias_ih) + plus(a_h, p_.bias_hh)); return;
    }
  }

 private:
  void lstm(const Tensor& a_x, const Tensor& a_h, Tensor& h, Tensor& c) const {
    Tensor a = a_x + a_h;
    if (o_.norm == RecurrentNorm::layer_gates) {
      std::vector<Tensor> gates;
      for (int64_t k = 0; k < 4; ++k) gates.push_back(row_norm(gate(a, k), slice(p_.gain_hh, 0, k * hidden_, (k + 1) * hidden_)));
      a = concat(gates, 1);
    }
    a = plus(plus(a, p_.bias_ih), p_.bias_hh);
    const Tensor i = sigmoid(gate(a, 0)), f = sigmoid(gate(a, 1)), g = tanh(gate(a, 2)), o = sigmoid(gate(a, 3));
    c = f * c + i * g;
    const Tensor k = cell_norm(c);
    if (o_.norm == RecurrentNorm::layer_carry || o_.norm == RecurrentNorm::layer_gates) c = k;
    h = o * tanh(k);
  }

  void gru(const Tensor& a_x, const Tensor& a_h, Tensor& h) const {
    const Tensor from_x = plus(a_x, p_.bias_ih), from_h = plus(a_h, p_.bias_hh);
    const Tensor r = sigmoid(gate(from_x, 0) + gate(from_h, 0)), z = sigmoid(gate(from_x, 1) + gate(from_h, 1));
    const Tensor n = tanh(gate(from_x, 2) + r * gate(from_h, 2));
    h = (1.0 - z) * n + z * h;
  }

  /// X and R of the equations.
  Tensor gates_norm(const Tensor& a, const Tensor& gain, const Tensor& mean, const Tensor& var) const {
    switch (o_.norm) {
      case RecurrentNorm::none:
      case RecurrentNorm::layer_cell:
      case RecurrentNorm::layer_gates: return a;
      case RecurrentNorm::batch: return column_norm(a, gain, Tensor(), mean, var);
      case RecurrentNorm::layer:
      case RecurrentNorm::layer_carry:
      case RecurrentNorm::rms: break;
    }
    if (o_.cell != RecurrentCell::gru) return row_norm(a, gain);
    const int64_t rz = 2 * hidden_;
    return concat({row_norm(slice(a, 1, 0, rz), slice(gain, 0, 0, rz)), row_norm(slice(a, 1, rz), slice(gain, 0, rz))}, 1);
  }

  /// K of the equations.
  Tensor cell_norm(const Tensor& c) const {
    if (o_.norm == RecurrentNorm::none) return c;
    if (o_.norm == RecurrentNorm::batch) return column_norm(c, p_.gain_c, p_.bias_c, s_.mean_c, s_.var_c);
    return plus(row_norm(c, p_.gain_c), p_.bias_c);
  }

  Tensor row_norm(const Tensor& a, const Tensor& gain) const {
    const Shape width{a.size(1)};
    return o_.norm == RecurrentNorm::rms ? rms_norm(a, width, gain, Tensor(), {.eps = o_.eps}) : layer_norm(a, width, gain, Tensor(), o_.eps);
  }
  Tensor column_norm(const Tensor& a, const Tensor& gain, const Tensor& bias, const Tensor& mean, const Tensor& var) const {
    return batch_norm(a, gain, bias, mean, var, Tensor(), {.training = o_.training, .momentum = o_.momentum, .eps = o_.eps});
  }
  Tensor gate(const Tensor& a, int64_t k) const { return slice(a, 1, k * hidden_, (k + 1) * hidden_); }
  static Tensor plus(const Tensor& a, const Tensor& bias) { return bias.defined() ? a + bias : a; }

  const RecurrentParameters& p_;
  const RecurrentOptions& o_;
  const RecurrentStatistics& s_;
  int64_t hidden_;
};

/// As recurrent(), for N >= 1. At step s of the walk the sequences longer than s go on, each at its own place (reverse: from its own end); the others
/// wait.
inline RecurrentResult recurrent_oracle(const Tensor& x, const Tensor& h0, const Tensor& c0, const RecurrentParameters& p,
                                        const RecurrentOptions& options, std::vector<int64_t> lengths = {},
                                        const RecurrentStatistics& statistics = {}) {
  const int64_t steps = x.size(0), batch = x.size(1), hidden = p.weight_hh.size(1);
  const auto sequences = static_cast<size_t>(batch);
  if (lengths.empty()) lengths.assign(sequences, steps);
  const Tensor zeros = Tensor::zeros({1, hidden}, x.dtype(), x.device());
  std::vector<Tensor> h, c;  // [1, H], by sequence
  for (int64_t n = 0; n < batch; ++n) {
    h.push_back(h0.defined() ? slice(h0, 0, n, n + 1) : zeros);
    c.push_back(c0.defined() ? slice(c0, 0, n, n + 1) : zeros);
  }
  std::vector<std::vector<Tensor>> y(static_cast<size_t>(steps), std::vector<Tensor>(sequences, zeros));

  for (int64_t step = 0; step < steps; ++step) {
    const auto time = [&](size_t n) { return options.reverse ? lengths[n] - 1 - step : step; };
    std::vector<size_t> alive;
    for (size_t n = 0; n < sequences; ++n)
      if (lengths[n] > step) alive.push_back(n);
    if (alive.empty()) break;
    std::vector<Tensor> xs, hs, cs;
    for (const size_t n : alive) {
      xs.push_back(slice(select(x, 0, time(n)), 0, static_cast<int64_t>(n), static_cast<int64_t>(n) + 1));
      hs.push_back(h[n]);
      cs.push_back(c[n]);
    }
    const auto row = [&](const Tensor& t) { return t.defined() ? select(t, 0, std::min(step, t.size(0) - 1)) : t; };  // shares memory: updates arrive
    const RecurrentStatistics now{row(statistics.mean_ih), row(statistics.var_ih), row(statistics.mean_hh),
                                  row(statistics.var_hh),  row(statistics.mean_c), row(statistics.var_c)};
    Tensor h_now = concat(hs), c_now = concat(cs);
    OracleStep(p, options, now)(concat(xs), h_now, c_now);
    for (size_t i = 0; i < alive.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      const size_t n = alive[i];
      h[n] = y[static_cast<size_t>(time(n))][n] = slice(h_now, 0, at, at + 1);
      c[n] = slice(c_now, 0, at, at + 1);
    }
  }

  std::vector<Tensor> outputs;
  for (const std::vector<Tensor>& now : y) outputs.push_back(concat(now));
  return {steps > 0 ? stack(outputs) : Tensor::zeros({0, batch, hidden}, x.dtype(), x.device()), concat(h),
          options.cell == RecurrentCell::lstm ? concat(c) : Tensor()};
}

}  // namespace lamina::test
