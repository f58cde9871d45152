#pragma once
// Compares the gradients of a layer with central differences: those of its input, and of every parameter.

#include <functional>
#include <vector>

#include <lamina/autograd/gradcheck.h>
#include <lamina/nn/module.h>

namespace lamina::nn {

/// gradcheck() of `forward`, which runs `module` on `inputs`, with respect to `inputs` and to every parameter of the module (tied ones once, frozen
/// ones too); messages name parameters by their paths. Inputs and parameters must be f64: module.cast(DType::f64). The result must be a pure function
/// of their values: no dropout in training mode. Afterwards the parameters are as before. Throws Error as gradcheck() does, and for a parameter that
/// is not ready.
GradcheckResult gradcheck(Module& module, const std::function<Tensor(const std::vector<Tensor>&)>& forward, std::vector<Tensor> inputs,
                          GradcheckOptions options = {});

/// Of a layer of one input.
template <class M>
GradcheckResult gradcheck(M& module, const Tensor& x, GradcheckOptions options = {}) {
  return gradcheck(
      module, [&module](const std::vector<Tensor>& in) { return module(in[0]); }, {x}, std::move(options));
}

}  // namespace lamina::nn
