#pragma once
// The fused recurrent op beside its composed version, with all gradients.

#include <algorithm>
#include <string>
#include <vector>

#include "support/catch.h"
#include "support/recurrent_inputs.h"
#include "support/recurrent_oracle.h"

namespace lamina::test {

// Some hundred f64 operations in a row; a normaliser multiplies rounding by 1 / deviation. Seen: up to 3e-14.
inline constexpr double f64_chain = 1e-12;
// The same in f32 (a unit in the last place is 1.2e-7), with products over up to some hundred terms. Seen: up to 2e-5.
inline constexpr double f32_chain = 1e-4;

struct Run {
  RecurrentResult result;
  std::vector<Tensor> gradients;  // by input
  RecurrentStatistics statistics;
};

struct Setting {
  RecurrentOptions options;
  std::vector<int64_t> lengths;
  int64_t statistics_rows = 0;  // 0: as many as steps
};

template <class Op>
Run run(Op&& op, const RecurrentCase& of, const RecurrentInputs& inputs, const Setting& setting, DType dtype) {
  const RecurrentInputs leaves = inputs.leaves(dtype);
  const int64_t rows = setting.statistics_rows > 0 ? setting.statistics_rows : std::max<int64_t>(1, leaves["x"].size(0));
  Run run;
  run.statistics = recurrent_statistics(of, rows, leaves["weight_hh"].size(1), dtype);
  run.result = op(leaves["x"], leaves["h0"], leaves["c0"], leaves.parameters(), setting.options, setting.lengths, run.statistics);
  recurrent_loss(run.result).backward();
  for (const Tensor& leaf : leaves.tensors) run.gradients.push_back(leaf.grad().defined() ? leaf.grad() : zeros(leaf.shape(), dtype));
  return run;
}

inline Run run_fused(const RecurrentCase& of, const RecurrentInputs& inputs, const Setting& setting, DType dtype) {
  return run([](const auto&... arguments) { return recurrent(arguments...); }, of, inputs, setting, dtype);
}
inline Run run_oracle(const RecurrentCase& of, const RecurrentInputs& inputs, const Setting& setting) {
  return run([](const auto&... arguments) { return recurrent_oracle(arguments...); }, of, inputs, setting, DType::f64);
}

inline double largest(const Tensor& x) {
  double result = 1;
  for (const double v : values(x)) result = std::max(result, std::abs(v));
  return result;
}

/// Equality to `tolerance` of the largest element.
inline void check(const std::string& what, const Tensor& have, const Tensor& expected, double tolerance) {
  INFO(what);
  check_close(have, expected, tolerance * largest(expected));
}

/// `slack` widens the tolerance.
inline void check_against_oracle(const RecurrentCase& of, const RecurrentInputs& inputs, const Setting& setting, DType dtype,
                                 bool all_gradients = true, double slack = 1) {
  const double tolerance = slack * (dtype == DType::f64 ? f64_chain : f32_chain);
  const Run have = run_fused(of, inputs, setting, dtype), expected = run_oracle(of, inputs, setting);
  check("y", have.result.y, expected.result.y, tolerance);
  check("h", have.result.h, expected.result.h, tolerance);
  CHECK(have.result.c.defined() == (of.cell == RecurrentCell::lstm));
  if (have.result.c.defined()) check("c", have.result.c, expected.result.c, tolerance);
  for (size_t i = 0; i < inputs.names.size(); ++i) {
    check("gradient of " + inputs.names[i], have.gradients[i], expected.gradients[i], tolerance);
    INFO("gradient of " << inputs.names[i]);
    if (all_gradients) CHECK(norm_of(have.gradients[i]) > 1e-6);
  }
  const auto mine = statistics_list(have.statistics), theirs = statistics_list(expected.statistics);
  for (size_t i = 0; i < mine.size(); ++i) check("statistics " + std::to_string(i), mine[i], theirs[i], tolerance);
}

inline std::string text(const RecurrentSizes& s) {
  return "T " + std::to_string(s.steps) + ", N " + std::to_string(s.batch) + ", C " + std::to_string(s.input) + ", H " + std::to_string(s.hidden);
}

/// Unsorted, with 0, T and equal ones; two sequences at least at every step, for batch.
inline std::vector<int64_t> some_lengths(const RecurrentSizes& s) {
  std::vector<int64_t> lengths(static_cast<size_t>(s.batch));
  for (size_t n = 0; n < lengths.size(); ++n) lengths[n] = (static_cast<int64_t>(n) * 5 + 3) % (s.steps + 1);
  lengths[0] = std::min<int64_t>(lengths[0], s.steps);
  lengths[1] = 0;
  lengths[2] = lengths.back() = s.steps;
  return lengths;
}

}  // namespace lamina::test
