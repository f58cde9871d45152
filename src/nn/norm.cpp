#include <lamina/nn/norm.h>

#include <cmath>

#include <lamina/autograd/graph.h>
#include <lamina/ops/norm.h>

#include "core/format.h"

namespace lamina::nn {

namespace {

void check_eps(const char* layer, double eps) {
  if (!(eps >= 0 && std::isfinite(eps))) fail(layer, "eps: expected a value >= 0, got {}", eps);
}

/// "784" or "[4, 5]".
std::string width_text(const Shape& shape) { return shape.rank() == 1 ? std::to_string(shape.size(0)) : shape.str(); }

}  // namespace

LayerNorm::LayerNorm(const Shape& normalized_shape, LayerNormOptions options) : shape_(normalized_shape), eps_(options.eps) {
  check_eps("layer_norm", eps_);
  if (options.gain) weight = Parameter(shape_, init::ones());
  if (options.bias) bias = Parameter(shape_, init::zeros());
}
Tensor LayerNorm::operator()(const Tensor& x) const { return layer_norm(x, shape_, weight, bias, eps_); }
void LayerNorm::members(Visitor& v) {
  v("weight", weight);
  v("bias", bias);
}
std::string LayerNorm::describe() const {
  return fmt::format("LayerNorm({}{}{})", width_text(shape_), weight.defined() ? "" : ", no gain", bias.defined() ? "" : ", no bias");
}

BatchNorm1d::BatchNorm1d(int64_t channels, BatchNormLayerOptions options) : channels_(channels), options_(options) {
  check_eps("batch_norm", options.eps);
  if (channels < 0) fail("batch_norm", "expected a channel count >= 0, got {}", channels);
  if (!(options.momentum >= 0 && options.momentum <= 1)) fail("batch_norm", "momentum: expected a value in [0, 1], got {}", options.momentum);
  if (options.affine) {
    weight = Parameter({channels}, init::ones());
    bias = Parameter({channels}, init::zeros());
  }
  if (options.track_running_stats) {
    running_mean = Buffer(Tensor::zeros({channels}));
    running_var = Buffer(Tensor::ones({channels}));
    num_batches_tracked = Buffer(Tensor::zeros({}, DType::i64));
  }
}

Tensor BatchNorm1d::operator()(const Tensor& x) {
  const Shape& shape = x.shape();
  if ((shape.rank() != 2 && shape.rank() != 3) || shape.size(1) != channels_)
    fail("batch_norm", "x: expected [N, {0}] or [N, {0}, L], got {1} (in {2})", channels_, shape, describe());
  const bool from_batch = training() || !running_mean.defined();
  if (from_batch && channels_ > 0 && shape.numel() == channels_)
    fail("batch_norm", "x: one value per channel has no variance: got {} (in {}); use a larger batch, or eval()", shape, describe());
  return batch_norm(x, weight, bias, running_mean.tensor(), running_var.tensor(), num_batches_tracked.tensor(),
                    {.training = training(),
                     .momentum = options_.momentum,
                     .cumulative = options_.cumulative || population_pass_,
                     .unbiased = options_.unbiased,
                     .eps = options_.eps});
}

void BatchNorm1d::members(Visitor& v) {
  v("weight", weight);
  v("bias", bias);
  v("running_mean", running_mean);
  v("running_var", running_var);
  v("num_batches_tracked", num_batches_tracked);
}

std::string BatchNorm1d::describe() const {
  return fmt::format("BatchNorm1d({}{}{}{})", channels_, options_.affine ? "" : ", not affine",
                     options_.track_running_stats ? "" : ", no running statistics", options_.unbiased ? ", unbiased" : "");
}

void BatchNorm1d::begin_population_statistics() {
  if (!running_mean.defined() || population_pass_) return;
  population_pass_ = true;
  former_mean_ = running_mean.tensor().clone();
  former_var_ = running_var.tensor().clone();
  former_count_ = num_batches_tracked.tensor().clone();
  // Cumulative averages start from a count of 0: the k-th batch gets weight 1/k. Finite values, so that none of an infected average stays.
  running_mean.reset();
  running_var.reset();
  num_batches_tracked.reset();
}

void BatchNorm1d::end_population_statistics(bool keep) {
  if (!population_pass_) return;
  population_pass_ = false;
  if (!keep || num_batches_tracked.tensor().item() == 0) {
    running_mean.tensor().copy_(former_mean_);
    running_var.tensor().copy_(former_var_);
  }
  num_batches_tracked.tensor().copy_(former_count_);
  former_mean_ = former_var_ = former_count_ = Tensor();
}

void recompute_population_statistics(Module& model, const std::function<void()>& forward) {
  struct Restore {
    std::vector<std::pair<Module*, bool>> modes;
    std::vector<BatchNorm1d*> norms;
    bool done = false;
    ~Restore() {
      for (BatchNorm1d* norm : norms) norm->end_population_statistics(done);
      for (const auto& [module, training] : modes) module->set_training(training);
    }
  } restore;
  for (const auto& [path, module] : model.modules()) {
    restore.modes.emplace_back(module, module->training());
    auto* norm = dynamic_cast<BatchNorm1d*>(module);
    module->set_training(norm != nullptr);
    if (!norm) continue;
    norm->begin_population_statistics();
    restore.norms.push_back(norm);
  }
  const NoGrad no_grad;
  forward();
  restore.done = true;
}

NormSpec NormSpec::parse(const std::string& text) {
  for (const Kind kind : {Kind::none, Kind::layer, Kind::batch})
    if (NormSpec(kind).str() == text) return kind;
  fail_input("norm", "unknown '{}'; expected one of {}", text, fmt::join(names(), ", "));
}

std::vector<std::string> NormSpec::names() { return {"none", "layer", "batch"}; }

std::string NormSpec::str() const {
  switch (kind) {
    case Kind::layer: return "layer";
    case Kind::batch: return "batch";
    case Kind::none: break;
  }
  return "none";
}

}  // namespace lamina::nn
