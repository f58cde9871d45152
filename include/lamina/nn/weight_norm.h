#pragma once
// Weight normalisation of a layer's weight (Salimans & Kingma 2016): w = g v / ||v||, one norm g for each output unit, one direction v.
// Any layer may hold one in place of a weight:
//
//   nn::WeightNorm weight({out, in}, init);
//   void members(Visitor& v) override { weight.members(v, "weight"); }   // "weight_g", "weight_v"
//   void drawn() override { weight.drawn(); }
//   Tensor operator()(const Tensor& x) { return linear(x, weight.value(), bias); }

#include <functional>
#include <string>

#include <lamina/nn/module.h>

namespace lamina::nn {

/// Names and shapes are those of torch.nn.utils.weight_norm: weight_g [out, 1, ...] and weight_v, the weight's shape. The names of
/// torch.nn.utils.parametrizations.weight_norm load too (Module::load_state_dict).
class WeightNorm {
 public:
  WeightNorm() = default;  // absent
  /// v is drawn by `init`; g becomes ||v||, so that at first the weight is v.
  WeightNorm(const Shape& weight, Init init);
  bool defined() const { return v.defined(); }

  /// g v / ||v||; gradients reach g and v.
  Tensor value() const;
  /// v / ||v||
  Tensor direction() const;
  void members(Visitor& visitor, const std::string& name);
  /// Sets g = ||v||, for Module::drawn().
  void drawn();

  /// Whether the next forward pass sets g and the bias from its data; the layer then calls set_from_data with what it would give with w = direction()
  /// and without bias, where `axis` is the units': g = 1 / deviation and bias = -mean / deviation, so that its outputs have mean 0 and deviation 1
  /// (eq. 6). A unit without spread keeps its g. The bias may be absent. Throws Error for fewer than two values per unit.
  bool awaits_data() const { return awaits_data_; }
  void await_data(bool on) { awaits_data_ = on; }
  void set_from_data(const Tensor& t, int axis, const Parameter& bias) const;

  Parameter g, v;

 private:
  bool awaits_data_ = false;
};

/// Data-dependent initialisation (Salimans & Kingma 2016, section 3) of every weight norm of the model that `forward`, one pass of the model over one
/// batch, reaches: layer by layer, each on what the layers before it give once they are set. Dropout is off meanwhile, batch norms use the batch;
/// modes and running statistics are as before afterwards. Other weights are left alone.
void initialise_weight_norms(Module& model, const std::function<void()>& forward);

}  // namespace lamina::nn
