#pragma once
// Runs a function with all its gradients, to compare two versions of it or two thread counts.

#include <vector>

#include <lamina/autograd/graph.h>

#include "support/allclose.h"
#include "support/gradcheck.h"
#include "support/threads.h"

namespace lamina::test {

struct Evaluation {
  Tensor y;
  std::vector<Tensor> gradients;  // by input
};

/// fn's result and the gradients of all inputs under the cotangent dy.
inline Evaluation evaluate(const Function& fn, std::vector<Tensor> inputs, const Tensor& dy) {
  for (Tensor& input : inputs) input = input.clone().set_requires_grad();
  Evaluation result{fn(inputs), {}};
  result.y.backward(dy);
  for (const Tensor& input : inputs) result.gradients.push_back(input.grad());
  return result;
}

inline std::vector<Tensor> cast(std::vector<Tensor> tensors, DType dtype) {
  for (Tensor& tensor : tensors) tensor = tensor.cast(dtype);
  return tensors;
}

/// CHECKs that fn in the inputs' own dtype gives what `reference` gives in f64: the result and every gradient, under a random cotangent.
/// The tolerance is relative to the largest element of each; gradients must not vanish unless `zero_gradients`.
inline void check_same(const Function& fn, const Function& reference, const std::vector<Tensor>& inputs, double tolerance,
                       bool zero_gradients = false) {
  const Tensor expected_y = [&] {
    const NoGrad no_grad;
    return reference(cast(inputs, DType::f64));
  }();
  const Tensor dy = normal(expected_y.shape(), 4242, inputs[0].dtype());
  const Evaluation have = evaluate(fn, inputs, dy);
  const Evaluation expected = evaluate(reference, cast(inputs, DType::f64), dy.cast(DType::f64));
  const auto check = [&](const Tensor& a, const Tensor& b) {
    const auto reference_values = values(b);
    double scale = 1;
    for (const double v : reference_values) scale = std::max(scale, std::abs(v));
    check_close(a, b, tolerance * scale);
  };
  check(have.y, expected.y);
  for (size_t i = 0; i < inputs.size(); ++i) {
    INFO("gradient of input " << i);
    if (!zero_gradients && inputs[i].numel() > 0) CHECK(norm_of(expected.gradients[i]) > 1e-6);
    check(have.gradients[i], expected.gradients[i]);
  }
}

/// CHECKs that result and gradients have the same bits with 1, 2, 3 and 8 threads. On a GPU, which has none to count, nothing: tests/devices runs
/// every op twice there.
inline void check_thread_counts(const Function& fn, const std::vector<Tensor>& inputs) {
  if (!device().is_cpu()) {
    SUCCEED("a GPU has no threads to count");
    return;
  }
  const auto run = [&](int threads) {
    const Threads guard(threads);
    const Tensor y = [&] {
      const NoGrad no_grad;
      return fn(inputs);
    }();
    return evaluate(fn, inputs, normal(y.shape(), 99, y.dtype()));
  };
  const Evaluation one = run(1);
  for (const int threads : {2, 3, 8}) {
    const Evaluation many = run(threads);
    INFO(threads << " threads");
    CHECK(same_bits(one.y, many.y));
    for (size_t i = 0; i < inputs.size(); ++i) CHECK(same_bits(one.gradients[i], many.gradients[i]));
  }
}

}  // namespace lamina::test
