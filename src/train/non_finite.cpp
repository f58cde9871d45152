#include <algorithm>

#include <lamina/autograd/graph.h>
#include <lamina/ops/reduce.h>
#include <lamina/train/trainer.h>
#include "core/format.h"

namespace lamina::train {
namespace {

bool finite(const Tensor& x) { return !x.defined() || !is_float(x.dtype()) || all_finite(x); }

std::string name_of(nn::Module& model, const std::string& path) {
  for (const auto& [module_path, module] : model.modules())
    if (module_path == path) return fmt::format("{} ({})", path.empty() ? "the model" : "layer " + path, module->describe());
  return path;
}

// Watches the ops of a forward pass: which layer is running (the last one whose parameter was used), and where a value is not finite for the first
// time.
class Detective {
 public:
  explicit Detective(nn::Module& model) : model_(model), parameters_(model.named_parameters()) {}

  void see(const char* op, std::span<const Tensor> inputs, std::span<const Tensor> outputs) {
    if (!found_.empty()) return;
    bool own = false;
    for (const auto& [path, parameter] : parameters_)
      for (const Tensor& input : inputs)
        if (input.defined() && input.is_same(parameter->tensor())) {
          layer_ = name_of(model_, path.substr(0, path.find_last_of('.') == std::string::npos ? 0 : path.find_last_of('.')));
          own = true;
          if (!finite(input)) found_ = fmt::format("the parameter {} itself", path);
        }
    if (!found_.empty() || std::ranges::all_of(outputs, finite)) return;
    if (!std::ranges::all_of(inputs, finite)) {  // no op of the graph gave it
      found_ = fmt::format("the batch, as an input of op {}", op);
      return;
    }
    found_ = own ? fmt::format("{}, its op {}", layer_, op) : layer_.empty() ? fmt::format("op {}", op) : fmt::format("op {} after {}", op, layer_);
  }

  const std::string& found() const { return found_; }

 private:
  nn::Module& model_;
  std::vector<nn::NamedParameter> parameters_;
  std::string layer_, found_;
};

}  // namespace

std::string first_non_finite(Task& task) {
  nn::Module& model = task.model();
  nn::StateDict buffers;
  for (const auto& [path, buffer] : model.named_buffers()) buffers.emplace_back(path, buffer->tensor().clone());
  Detective detective(model);
  {
    const autograd::Observer observer([&](const char* op, auto inputs, auto outputs) { detective.see(op, inputs, outputs); });
    task.loss();
  }
  size_t next = 0;
  for (const auto& [path, buffer] : model.named_buffers()) buffer->tensor().copy_(buffers[next++].second);
  return detective.found().empty() ? "nothing in the forward pass, so a gradient" : detective.found();
}

}  // namespace lamina::train
