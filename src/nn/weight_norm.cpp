#include <lamina/nn/weight_norm.h>

#include <lamina/autograd/graph.h>
#include <lamina/ops/elementwise.h>
#include <lamina/ops/norm.h>
#include <lamina/ops/reduce.h>
#include <lamina/ops/shape_ops.h>

#include <cmath>

#include "core/format.h"
#include "nn/norm_pass.h"

namespace lamina::nn {

namespace {

Shape norms_of(Shape weight) {
  if (weight.rank() < 1) fail("weight_norm", "expected a weight [out, ...], got a scalar");
  for (int axis = 1; axis < weight.rank(); ++axis) weight = weight.with(axis, 1);
  return weight;
}

/// Finds every weight norm below a module: WeightNorm::members shows itself to this visitor.
class Finder final : public Visitor {
 public:
  explicit Finder(Module& root) { root.members(*this); }
  void operator()(const std::string&, Parameter&) override {}
  void operator()(const std::string&, Buffer&) override {}
  void operator()(const std::string&, Module& module) override { module.members(*this); }
  std::vector<WeightNorm*> found;
};

}  // namespace

WeightNorm::WeightNorm(const Shape& weight, Init init) : g(norms_of(weight), init::ones()), v(weight, init) {}

Tensor WeightNorm::value() const { return weight_norm(v, g); }

Tensor WeightNorm::direction() const { return weight_norm(v, Tensor::ones(g.shape(), g.tensor().dtype(), g.tensor().device())); }

void WeightNorm::members(Visitor& visitor, const std::string& name) {
  if (!defined()) return;
  if (auto* finder = dynamic_cast<Finder*>(&visitor)) finder->found.push_back(this);
  visitor(name + "_g", g);
  visitor(name + "_v", v);
}

void WeightNorm::drawn() {
  if (!defined()) return;
  const NoGrad no_grad;
  Axes axes;
  for (int axis = 1; axis < v.shape().rank(); ++axis) axes.push_back(axis);
  g.set(axes.empty() ? abs(v.value()) : norm(v.value(), axes, true));
}

void WeightNorm::set_from_data(const Tensor& t, int axis, const Parameter& bias) const {
  const NoGrad no_grad;
  const int units = t.shape().normalize_axis(axis, "weight_norm");
  const int64_t out = t.size(units), values = out > 0 ? t.numel() / out : 0;
  if (out == 0) return;
  if (values < 2) fail("weight_norm", "data-dependent initialisation: expected two or more values per unit, got {}", t.shape());
  Axes others;
  for (int i = 0; i < t.rank(); ++i)
    if (i != units) others.push_back(i);
  const std::vector<double> mean_of = lamina::mean(t, others).cast(DType::f64).to_vector<double>();
  const std::vector<double> var_of = lamina::var(t, others, 0).cast(DType::f64).to_vector<double>();
  std::vector<double> g_of = g.value().cast(DType::f64).to_vector<double>(), bias_of(mean_of.size());
  for (size_t i = 0; i < mean_of.size(); ++i) {
    if (var_of[i] > 0 && std::isfinite(var_of[i])) g_of[i] = 1 / std::sqrt(var_of[i]);
    bias_of[i] = -mean_of[i] * g_of[i];
  }
  // Through handles: a forward pass is const, and what it changes here is the values, not the layer.
  const auto write = [](Tensor to, const std::vector<double>& from) { to.copy_(Tensor::from(from, to.shape()).to(to.device()).cast(to.dtype())); };
  write(g.tensor(), g_of);
  if (bias.defined()) write(bias.tensor(), bias_of);
}

void initialise_weight_norms(Module& model, const std::function<void()>& forward) {
  struct Await {
    std::vector<WeightNorm*> norms;
    explicit Await(std::vector<WeightNorm*> all) : norms(std::move(all)) {
      for (WeightNorm* norm : norms) norm->await_data(true);
    }
    ~Await() {
      for (WeightNorm* norm : norms) norm->await_data(false);
    }
  };
  const StatisticsPass pass(model);
  const Await await(Finder(model).found);
  const NoGrad no_grad;
  forward();
}

}  // namespace lamina::nn
