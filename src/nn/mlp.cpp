#include <lamina/nn/mlp.h>

#include "core/format.h"

namespace lamina::nn {

namespace {

Function activation(const std::string& name) {
  static const std::pair<const char*, Function (*)()> known[] = {
      {"relu", ReLU},       {"tanh", Tanh},
      {"sigmoid", Sigmoid}, {"gelu", [] { return GELU(); }},
      {"silu", SiLU},       {"leaky_relu", [] { return LeakyReLU(); }},
  };
  std::vector<std::string> names;
  for (const auto& [text, make] : known) {
    if (name == text) return make();
    names.emplace_back(text);
  }
  fail_input("mlp", "unknown activation '{}'; expected one of {}", name, fmt::join(names, ", "));
}

Linear dense(int64_t in, int64_t out, bool normalised, const MLPOptions& options) {
  LinearOptions linear{.bias = options.bias, .weight_init = init::parse(options.init, {out, in}), .weight_norm = normalised && options.norm.weight};
  if (options.bias_init != "pytorch") linear.bias_init = init::parse(options.bias_init, {out});
  return {in, out, linear};
}

void add_norm(Sequential& net, int64_t width, const MLPOptions& options) {
  NormLayer norm = make_norm(options.norm, {.builder = "mlp", .features = width}, {.eps = options.eps, .batch_norm = options.batch_norm});
  std::visit(
      [&](auto& layer) {
        if constexpr (std::is_base_of_v<Module, std::decay_t<decltype(layer)>>) net.add(std::move(layer));
      },
      norm);
}

}  // namespace

Sequential MLP(const MLPOptions& options) {
  const std::vector<int64_t>& sizes = options.sizes;
  if (sizes.size() < 2) fail_input("mlp", "sizes: expected at least an input and an output size, got {}", sizes.size());
  for (const int64_t size : sizes)
    if (size < 1) fail_input("mlp", "sizes: expected sizes >= 1, got [{}]", fmt::join(sizes, ", "));
  if (!(options.dropout >= 0 && options.dropout <= 1)) fail_input("mlp", "dropout: expected a probability in [0, 1], got {}", options.dropout);
  const Function act = activation(options.activation);

  Sequential net;
  net.told_of_biases_ = true;
  const size_t last = sizes.size() - 1;
  for (size_t i = 1; i < last; ++i) {
    net.add(dense(sizes[i - 1], sizes[i], true, options));
    if (options.norm_after_activation) net.add(act);
    add_norm(net, sizes[i], options);
    if (!options.norm_after_activation) net.add(act);
    if (options.dropout > 0) net.add(Dropout(options.dropout));
  }
  net.add(dense(sizes[last - 1], sizes[last], options.norm_output, options));
  if (options.norm_output) add_norm(net, sizes[last], options);
  return net;
}

}  // namespace lamina::nn
