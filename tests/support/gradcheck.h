#pragma once
// gradcheck() inside a test: check_gradients(fn, inputs) CHECKs and prints the worst coordinates.

#include <lamina/autograd/gradcheck.h>

#include "support/catch.h"
#include "support/random.h"

namespace lamina::test {

using Function = std::function<Tensor(const std::vector<Tensor>&)>;

/// All inputs f64. The cotangent is random, every numeric gradient must be non-zero, reuse and freezing are checked as well.
inline void check_gradients(const Function& fn, std::vector<Tensor> inputs, const GradcheckOptions& options = {}) {
  const GradcheckResult result = gradcheck(fn, std::move(inputs), options);
  INFO(result.message);
  CHECK(result.ok);
}

}  // namespace lamina::test
