#pragma once
// Helpers for tests of modules.

#include <string>
#include <vector>

#include <lamina/nn/gradcheck.h>
#include <lamina/nn/module.h>

#include "support/allclose.h"
#include "support/gradcheck.h"

namespace lamina::test {

/// Every norm that an MLP of even widths takes; tests/golden/mlp_*.safetensors has them.
inline std::vector<std::string> mlp_norms() {
  return {"none", "layer", "batch", "meanbatch", "group:2", "rms", "prms:0.2", "weight", "weight+meanbatch"};
}

/// All names of a state dict, separated by spaces.
inline std::string names(const nn::StateDict& state) {
  std::string text;
  for (const auto& [name, value] : state) text += (text.empty() ? "" : " ") + name;
  return text;
}

/// Copies of the values, for comparing before and after.
inline nn::StateDict snapshot(nn::Module& module) {
  nn::StateDict state = module.state_dict();
  for (auto& [name, value] : state) value = value.clone();
  return state;
}

inline bool same_state(const nn::StateDict& a, const nn::StateDict& b) {
  if (names(a) != names(b)) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (!same_bits(a[i].second, b[i].second)) return false;
  return true;
}

/// Gradients of x and of every parameter of the f64 module against central differences.
template <class Module>
void check_module_gradients(Module& module, const Tensor& x) {
  std::vector<Tensor> inputs = {x};
  for (nn::Parameter* parameter : module.parameters()) inputs.push_back(parameter->value());
  const GradcheckResult result = nn::gradcheck(module, x, on_device({}, inputs));
  INFO(result.message);
  CHECK(result.ok);
}

}  // namespace lamina::test
