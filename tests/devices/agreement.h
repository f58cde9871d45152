#pragma once
// Holding what a GPU computes against what the CPU does.

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <lamina/autograd/graph.h>
#include <lamina/nn/module.h>

#include "support/allclose.h"
#include "support/random.h"

namespace lamina::test {

/// Chains of tens of f64 operations whose sums run in another order than on the CPU, some multiplied by 1 / deviation. Seen: up to 2e-14.
inline constexpr double f64_agreement = 1e-12;
/// The same in f32, where a unit in the last place is 1.2e-7. Seen: up to 3e-6.
inline constexpr double f32_agreement = 3e-5;

inline double agreement(DType dtype) { return dtype == DType::f64 ? f64_agreement : f32_agreement; }

inline std::vector<Tensor> moved(std::vector<Tensor> tensors, Device where) {
  for (Tensor& t : tensors)
    if (t.defined()) t = t.to(where);
  return tensors;
}

/// CHECKs |a - b| <= tolerance * max(1, the largest |b|).
inline void check_agreement(const std::string& what, const Tensor& cuda, const Tensor& cpu, double tolerance) {
  INFO(what);
  REQUIRE(cuda.defined() == cpu.defined());
  if (!cpu.defined()) return;
  CHECK(cuda.device() == device());
  CHECK(cpu.device().is_cpu());
  double scale = 1;
  for (const double v : values(cpu))
    if (std::isfinite(v)) scale = std::max(scale, std::abs(v));
  check_close(cuda, cpu, tolerance * scale);
}

/// All parameters and buffers.
inline void check_same_state(nn::Module& cuda, nn::Module& cpu, double tolerance) {
  const nn::StateDict a = cuda.state_dict(), b = cpu.state_dict();
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    INFO(a[i].first);
    check_close(a[i].second, values(b[i].second), tolerance);
  }
}

/// The gradients of all parameters, which must not be zero.
inline void check_same_gradients(nn::Module& cuda, nn::Module& cpu, double tolerance) {
  const auto a = cuda.named_parameters(), b = cpu.named_parameters();
  for (size_t i = 0; i < a.size(); ++i) {
    check_agreement("gradient of " + a[i].path, a[i].parameter->grad(), b[i].parameter->grad(), tolerance);
    INFO(a[i].path);
    CHECK(norm_of(b[i].parameter->grad()) > 1e-6);
  }
}

}  // namespace lamina::test
