#include <lamina/nn/gradcheck.h>

#include <unordered_map>
#include <utility>

#include "core/format.h"

namespace lamina::nn {

namespace {

/// Lets other tensors stand in for a module's parameters; its own come back at the end.
class StandIns {
 public:
  explicit StandIns(Module& module) {
    std::unordered_map<const lamina::detail::TensorImpl*, size_t> seen;
    for (const auto& [path, parameter] : module.named_parameters(false)) {
      const Tensor own = parameter->value();
      const auto [first, fresh] = seen.try_emplace(own.impl().get(), values_.size());
      if (fresh) {
        values_.push_back(own);
        paths_.push_back(path);
      }
      uses_.push_back({parameter, own, first->second});
    }
  }
  ~StandIns() {
    for (const Use& use : uses_) use.parameter->tensor() = use.own;
  }
  StandIns(const StandIns&) = delete;
  StandIns& operator=(const StandIns&) = delete;

  const std::vector<Tensor>& values() const { return values_; }
  const std::vector<std::string>& paths() const { return paths_; }
  void put(std::span<const Tensor> tensors) const {
    for (const Use& use : uses_) use.parameter->tensor() = tensors[use.index];
  }

 private:
  struct Use {
    Parameter* parameter;
    Tensor own;
    size_t index;  // the same for tied ones
  };
  std::vector<Use> uses_;
  std::vector<Tensor> values_;
  std::vector<std::string> paths_;
};

}  // namespace

GradcheckResult gradcheck(Module& module, const std::function<Tensor(const std::vector<Tensor>&)>& forward, std::vector<Tensor> inputs,
                          GradcheckOptions options) {
  const StandIns parameters(module);
  const size_t count = inputs.size();
  for (size_t i = options.names.size(); i < count; ++i) options.names.push_back(fmt::format("input {}", i));
  options.names.resize(count);
  options.names.insert(options.names.end(), parameters.paths().begin(), parameters.paths().end());
  inputs.insert(inputs.end(), parameters.values().begin(), parameters.values().end());
  return lamina::gradcheck(
      [&](const std::vector<Tensor>& in) {
        parameters.put(std::span(in).subspan(count));
        return forward({in.begin(), in.begin() + static_cast<std::ptrdiff_t>(count)});
      },
      std::move(inputs), std::move(options));
}

}  // namespace lamina::nn
