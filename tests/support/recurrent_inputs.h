#pragma once
// Random inputs for recurrent ops, every parameter that a norm has, and their gradients.

#include <string>
#include <vector>

#include <lamina/ops/elementwise.h>
#include <lamina/ops/recurrent.h>
#include <lamina/ops/reduce.h>

#include "support/allclose.h"
#include "support/random.h"

namespace lamina::test {

struct RecurrentCase {
  RecurrentCell cell;
  RecurrentNorm norm;
  std::string name;
};

/// Every cell with every norm that it has.
inline std::vector<RecurrentCase> recurrent_cases() {
  using C = RecurrentCell;
  using N = RecurrentNorm;
  return {{C::lstm, N::none, "lstm none"},
          {C::lstm, N::layer, "lstm layer"},
          {C::lstm, N::layer_cell, "lstm layer_cell"},
          {C::lstm, N::layer_carry, "lstm layer_carry"},
          {C::lstm, N::layer_gates, "lstm layer_gates"},
          {C::lstm, N::rms, "lstm rms"},
          {C::lstm, N::batch, "lstm batch"},
          {C::gru, N::none, "gru none"},
          {C::gru, N::layer, "gru layer"},
          {C::gru, N::rms, "gru rms"},
          {C::gru, N::batch, "gru batch"},
          {C::rnn, N::none, "rnn none"},
          {C::rnn, N::layer, "rnn layer"},
          {C::rnn, N::rms, "rnn rms"},
          {C::rnn, N::batch, "rnn batch"}};
}

struct RecurrentSizes {
  int64_t steps, batch, input, hidden;
};

struct RecurrentInputs {
  std::vector<std::string> names;
  std::vector<Tensor> tensors;

  const Tensor& operator[](const std::string& name) const {
    static const Tensor absent;
    for (size_t i = 0; i < names.size(); ++i)
      if (names[i] == name) return tensors[i];
    return absent;
  }
  RecurrentParameters parameters() const {
    const RecurrentInputs& t = *this;
    return {t["weight_ih"], t["weight_hh"], t["bias_ih"], t["bias_hh"], t["gain_ih"], t["gain_hh"], t["gain_c"], t["bias_c"]};
  }
  /// Fresh leaves of another dtype.
  RecurrentInputs leaves(DType dtype) const {
    RecurrentInputs result = *this;
    for (Tensor& t : result.tensors) t = t.detach().cast(dtype).clone().set_requires_grad();
    return result;
  }
};

/// x, h0, c0 and all parameters of the case. Values are exact in f32; gains are around 1, so that nothing saturates.
inline RecurrentInputs recurrent_inputs(const RecurrentCase& of, const RecurrentSizes& sizes, uint64_t seed = 1, DType dtype = DType::f64,
                                        bool states = true, bool biases = true) {
  const auto [steps, batch, input, hidden] = sizes;
  const int64_t rows = gate_count(of.cell) * hidden;
  const bool lstm = of.cell == RecurrentCell::lstm;
  RecurrentInputs result;
  const auto add = [&](const char* name, const Shape& shape, double mean, double std) {
    result.names.emplace_back(name);
    result.tensors.push_back(normal(shape, seed * 100 + result.names.size(), DType::f32, mean, std).cast(dtype));
  };
  add("x", {steps, batch, input}, 0, 1);
  if (states) add("h0", {batch, hidden}, 0, 0.5);
  if (states && lstm) add("c0", {batch, hidden}, 0, 0.7);
  add("weight_ih", {rows, input}, 0, 0.8 / std::sqrt(static_cast<double>(input)));
  add("weight_hh", {rows, hidden}, 0, 0.8 / std::sqrt(static_cast<double>(hidden)));
  if (biases) add("bias_ih", {rows}, 0, 0.3);
  if (biases) add("bias_hh", {rows}, 0, 0.3);
  if (of.norm == RecurrentNorm::none) return result;
  const bool both = of.norm != RecurrentNorm::layer_cell && of.norm != RecurrentNorm::layer_gates;
  if (both) add("gain_ih", {rows}, 0.8, 0.3);
  if (both || of.norm == RecurrentNorm::layer_gates) add("gain_hh", {rows}, 0.8, 0.3);
  if (lstm) add("gain_c", {hidden}, 0.8, 0.3);
  if (lstm && biases) add("bias_c", {hidden}, 0, 0.3);
  return result;
}

/// Running statistics of `batch` as a trained layer might have them; nothing for other norms.
inline RecurrentStatistics recurrent_statistics(const RecurrentCase& of, int64_t rows, int64_t hidden, DType dtype = DType::f64) {
  if (of.norm != RecurrentNorm::batch) return {};
  const int64_t width = gate_count(of.cell) * hidden;
  const auto mean = [&](uint64_t seed, int64_t n) { return normal({rows, n}, 900 + seed, DType::f32, 0, 0.2).cast(dtype); };
  const auto var = [&](uint64_t seed, int64_t n) { return uniform({rows, n}, 910 + seed, 0.5, 1.5).cast(dtype); };
  RecurrentStatistics s{mean(1, width), var(1, width), mean(2, width), var(2, width), {}, {}};
  if (of.cell == RecurrentCell::lstm) s.mean_c = mean(3, hidden), s.var_c = var(3, hidden);
  return s;
}

inline std::vector<Tensor> statistics_list(const RecurrentStatistics& s) {
  std::vector<Tensor> result;
  for (const Tensor& t : {s.mean_ih, s.var_ih, s.mean_hh, s.var_hh, s.mean_c, s.var_c})
    if (t.defined()) result.push_back(t);
  return result;
}

/// The inner product of all outputs with random cotangents.
inline Tensor recurrent_loss(const RecurrentResult& result, uint64_t seed = 77) {
  const auto inner = [&](const Tensor& t, uint64_t more) { return sum(t * normal(t.shape(), seed + more, DType::f32).cast(t.dtype())); };
  const Tensor loss = inner(result.y, 1) + inner(result.h, 2);
  return result.c.defined() ? loss + inner(result.c, 3) : loss;
}

}  // namespace lamina::test
