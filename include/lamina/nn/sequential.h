#pragma once
// A chain of modules, applied in order. Holds any copyable struct with `Tensor operator()(const Tensor&)`, module or not (a lambda, say).

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include <lamina/nn/module.h>

namespace lamina::nn {

class Sequential : public Module {
 public:
  Sequential() = default;
  template <class... Layers>
  requires(sizeof...(Layers) > 1 || (!std::is_same_v<std::decay_t<Layers>, Sequential> && ...)) explicit Sequential(Layers&&... layers) {
    (add(std::forward<Layers>(layers)), ...);
  }
  Sequential(const Sequential& other);
  Sequential& operator=(const Sequential& other);
  Sequential(Sequential&&) noexcept = default;
  Sequential& operator=(Sequential&&) noexcept = default;

  /// Appends a layer; its members get paths "<position>.<name>".
  template <class Layer>
  Sequential& add(Layer&& layer) {
    layers_.push_back(std::make_unique<Holder<std::decay_t<Layer>>>(std::forward<Layer>(layer)));
    return *this;
  }

  /// An empty chain returns x. In training, warns once (see core/warning.h) of a Linear whose bias does nothing because the batch norm after it takes
  /// every mean off.
  Tensor operator()(const Tensor& x);
  void members(Visitor& v) override;
  std::string describe() const override { return "Sequential"; }
  size_t size() const { return layers_.size(); }
  /// The layer at `index` as its own type. Throws Error when out of range or of another type.
  template <class Layer>
  Layer& at(size_t index);

 private:
  struct Slot {
    virtual ~Slot() = default;
    virtual Tensor forward(const Tensor& x) = 0;
    virtual std::unique_ptr<Slot> copy() const = 0;
    virtual Module* module() = 0;  // null for plain functions
  };
  template <class Layer>
  struct Holder final : Slot {
    template <class L>
    explicit Holder(L&& l) : layer(std::forward<L>(l)) {}
    Tensor forward(const Tensor& x) override { return layer(x); }
    std::unique_ptr<Slot> copy() const override { return std::make_unique<Holder>(layer); }
    Module* module() override {
      if constexpr (std::is_base_of_v<Module, Layer>)
        return &layer;
      else
        return nullptr;
    }
    Layer layer;
  };
  [[noreturn]] void fail_at(size_t index) const;
  /// A layer, of a nested sequence its last or first one; null for plain functions.
  Module* outer_layer(size_t index, bool last) const;
  void warn_of_dead_biases();
  friend Sequential MLP(const struct MLPOptions& options);  // whose biases are an option

  std::vector<std::unique_ptr<Slot>> layers_;
  bool told_of_biases_ = false;
};

template <class Layer>
Layer& Sequential::at(size_t index) {
  if (index < layers_.size())
    if (auto* holder = dynamic_cast<Holder<Layer>*>(layers_[index].get())) return holder->layer;
  fail_at(index);
}

}  // namespace lamina::nn
