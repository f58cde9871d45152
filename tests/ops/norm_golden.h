#pragma once
// What the tests of several normalisers share.

#include <string>

#include "support/evaluate.h"
#include "support/golden.h"

namespace lamina::test {

/// The running statistics of a fresh layer.
struct RunningBuffers {
  Tensor mean, var, count = zeros({}, DType::i64);
  explicit RunningBuffers(int64_t channels, DType dtype = DType::f32) : mean(zeros({channels}, dtype)), var(ones({channels}, dtype)) {}
};

/// CHECKs y and the gradients of x, gain and bias. dx carries the factor rstd, and so does its error.
inline void check_golden(const Evaluation& run, const Golden& golden, const std::string& at, double tolerance, double rstd = 1) {
  check_close(run.y, golden(at + "y"), tolerance);
  check_close(run.gradients[0], golden(at + "dx"), tolerance * rstd);
  check_close(run.gradients[1], golden(at + "dgain"), tolerance);
  check_close(run.gradients[2], golden(at + "dbias"), tolerance);
}

}  // namespace lamina::test
