#pragma once
// Compares the gradients of a function with central differences. Works on any op or layer, in f64.

#include <functional>
#include <string>
#include <vector>

#include <lamina/core/tensor.h>

namespace lamina {

struct GradcheckOptions {
  double step = 1e-5;  // h, scaled by max(1, |x|)
  double rtol = 1e-6;  // |numeric - analytic| <= atol + rtol * max(|numeric|, |analytic|, norm of the gradient / sqrt(n))
  double atol = 1e-9;
  int max_coordinates = 200;  // sampled per input, deterministically
  double min_norm = 1e-6;     // the numeric gradient of every input must be at least this long, unless expect_zero
  bool expect_zero = false;
  uint64_t seed = 1;                    // of the random cotangent
  std::vector<std::string> names = {};  // of the inputs, for messages; those without are "input 0", "input 1", ...
};

struct GradcheckResult {
  bool ok = false;
  double worst_error = 0;  // largest relative error seen
  std::string message;     // the worst five coordinates: input, index, numeric, analytic, error
  explicit operator bool() const { return ok; }
};

/// `fn` maps the inputs (all f64; the leaves among them are made to require gradients) to one tensor. It must be a pure function of their values.
/// The loss is the inner product of fn's result with a random normal cotangent. Checked as well: two backward passes over one retained graph add up
/// to twice the gradient, and switching the gradient off for each input in turn leaves the others unchanged.
/// Throws Error when an input or the result is not f64, and under NoGrad. Of a layer and its parameters: <lamina/nn/gradcheck.h>.
GradcheckResult gradcheck(const std::function<Tensor(const std::vector<Tensor>&)>& fn, std::vector<Tensor> inputs, GradcheckOptions options = {});

}  // namespace lamina
