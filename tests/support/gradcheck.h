#pragma once
// gradcheck() inside a test: check_gradients(fn, inputs) CHECKs and prints the worst coordinates.

#include <lamina/autograd/gradcheck.h>

#include <algorithm>

#include "support/catch.h"
#include "support/random.h"

namespace lamina::test {

using Function = std::function<Tensor(const std::vector<Tensor>&)>;

/// Under the emulator every kernel is slow; the CPU's run has checked the formulas at all coordinates.
inline GradcheckOptions on_device(GradcheckOptions options, const std::vector<Tensor>& inputs) {
  if (device().is_cpu()) return options;
  const bool small = std::ranges::all_of(inputs, [](const Tensor& x) { return x.numel() <= 24; });
  options.max_coordinates = std::min(options.max_coordinates, small ? 24 : 8);
  return options;
}

/// All inputs f64. The cotangent is random, every numeric gradient must be non-zero, reuse and freezing are checked as well.
inline void check_gradients(const Function& fn, std::vector<Tensor> inputs, GradcheckOptions options = {}) {
  options = on_device(std::move(options), inputs);
  const GradcheckResult result = gradcheck(fn, std::move(inputs), options);
  INFO(result.message);
  CHECK(result.ok);
}

}  // namespace lamina::test
