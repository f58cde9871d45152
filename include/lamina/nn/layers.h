#pragma once
// Linear, activations, dropout, embedding. Layouts, defaults and state-dict names follow PyTorch 2.

#include <functional>
#include <optional>
#include <string>

#include <lamina/nn/module.h>
#include <lamina/nn/weight_norm.h>
#include <lamina/ops/elementwise.h>

namespace lamina::nn {

struct LinearOptions {
  bool bias = true;
  std::optional<Init> weight_init = {};  // default: init::pytorch_default
  std::optional<Init> bias_init = {};    // default: U(-1/sqrt(in), 1/sqrt(in))
  bool weight_norm = false;              // the weight is g v / ||v||; weight_init draws v
};

/// y = x W^T + b: [..., in] -> [..., out]. Parameters: weight [out, in] (with weight norm instead weight_g [out, 1] and weight_v [out, in]), bias
/// [out]. Throws Error for negative sizes.
class Linear : public Module {
 public:
  Linear(int64_t in, int64_t out, LinearOptions options = {});
  Tensor operator()(const Tensor& x) const;
  void members(Visitor& v) override;
  void drawn() override { weight_norm.drawn(); }
  std::string describe() const override;

  Parameter weight, bias;
  WeightNorm weight_norm;  // absent, or in place of weight
};

/// A table of vectors: ids i64 [...] -> [..., width]. Parameter: weight [count, width] ~ N(0, 1); row `padding` starts as zero and gets no gradient.
/// Throws Error for negative sizes, or a padding that is neither -1 (none) nor a row.
class Embedding : public Module {
 public:
  Embedding(int64_t count, int64_t width, int64_t padding = -1);
  Tensor operator()(const Tensor& ids) const;
  void members(Visitor& v) override;
  std::string describe() const override;

  Parameter weight;

 private:
  int64_t padding_;
};

/// Inverted dropout in training, identity in evaluation. The stream is set by Module::init (from seed and path) and its position is saved in the
/// state dict as buffer "rng" (i64 [2]: key, counter), so that a resumed run draws the same masks. Throws Error unless 0 <= p <= 1, and when used in
/// training before the stream was set.
class Dropout : public Module {
 public:
  explicit Dropout(double p = 0.5);
  Tensor operator()(const Tensor& x);
  void members(Visitor& v) override;
  std::string describe() const override;

  Buffer rng;

 private:
  double p_;
};

/// Activations and reshapes as modules without members; any function of one tensor with a name for summaries.
class Function : public Module {
 public:
  Function(std::string name, std::function<Tensor(const Tensor&)> f) : name_(std::move(name)), f_(std::move(f)) {}
  Tensor operator()(const Tensor& x) const { return f_(x); }
  void members(Visitor&) override {}
  std::string describe() const override { return name_; }

 private:
  std::string name_;
  std::function<Tensor(const Tensor&)> f_;
};

Function ReLU();
Function LeakyReLU(double slope = 0.01);
Function Tanh();
Function Sigmoid();
Function GELU(Gelu form = Gelu::exact);
Function SiLU();
Function Softplus();
Function Flatten();  // [N, ...] -> [N, features]

}  // namespace lamina::nn
