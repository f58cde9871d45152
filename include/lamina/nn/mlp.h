#pragma once
// A multi-layer perceptron with a normaliser by name: {Linear -> [norm] -> activation} for each hidden layer, then Linear. The paper's
// permutation-invariant MNIST net is MLP({.sizes = {784, 1000, 1000, 10}, .norm = "layer"}). Weight norm is in the Linear layers themselves.

#include <optional>
#include <string>
#include <vector>

#include <lamina/nn/layers.h>
#include <lamina/nn/norm.h>
#include <lamina/nn/sequential.h>

namespace lamina::nn {

struct MLPOptions {
  std::vector<int64_t> sizes;  // input, hidden..., output; at least two
  NormSpec norm = "none";
  bool norm_output = false;               // normalise the last layer's outputs too
  bool norm_after_activation = false;     // Linear -> activation -> norm instead
  std::string activation = "relu";        // relu, tanh, sigmoid, gelu, silu, leaky_relu
  std::string init = "pytorch";           // weights; see init::parse
  std::string bias_init = "pytorch";      // "pytorch" or as init::parse ("zeros")
  bool bias = true;                       // of the Linear layers, also where a batch norm makes it do nothing, as in the papers' nets
  double dropout = 0.0;                   // after each hidden block
  std::optional<double> eps = {};         // of the norm; default: its own (1e-5, rms: the machine epsilon)
  BatchNormLayerOptions batch_norm = {};  // eps above wins
};

/// Throws InputError for fewer than two sizes, a size < 1, an unknown activation or initialiser, a dropout outside [0, 1], or a norm that makes no
/// sense for one of the widths that it normalises (see make_norm).
Sequential MLP(const MLPOptions& options);

}  // namespace lamina::nn
