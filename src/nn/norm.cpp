#include <lamina/nn/norm.h>

#include <atomic>
#include <cmath>

#include <lamina/autograd/graph.h>
#include <lamina/core/warning.h>
#include <lamina/ops/elementwise.h>
#include <lamina/ops/norm.h>
#include <lamina/ops/reduce.h>

#include "core/format.h"
#include "nn/norm_pass.h"

namespace lamina::nn {

namespace {

void check_eps(const char* layer, double eps) {
  if (!(eps >= 0 && std::isfinite(eps))) fail(layer, "eps: expected a value >= 0, got {}", eps);
}

/// "784" or "[4, 5]".
std::string width_text(const Shape& shape) { return shape.rank() == 1 ? std::to_string(shape.size(0)) : shape.str(); }

/// `gives`: what comes of normalising one value.
void warn_of_single_value(const char* layer, const Module& module, const Shape& shape, const char* gives) {
  if (shape.numel() == 1) warn(layer, fmt::format("{}: normalises one value alone, so it gives {} for any input", module.title(), gives));
}

void check_shape(const char* layer, const Shape& normalized_shape) {
  if (normalized_shape.rank() == 0) fail(layer, "normalized_shape: expected at least one axis, got []");
}

/// Whether all values of a buffer are `value`.
bool holds_only(const Buffer& buffer, double value) { return !buffer.defined() || max(abs(buffer.tensor() - value)).item() == 0; }

}  // namespace

LayerNorm::LayerNorm(const Shape& normalized_shape, LayerNormOptions options) : shape_(normalized_shape), eps_(options.eps) {
  check_shape("layer_norm", shape_);
  check_eps("layer_norm", eps_);
  if (options.gain) weight = Parameter(shape_, init::ones());
  if (options.bias) bias = Parameter(shape_, init::zeros());
}
Tensor LayerNorm::operator()(const Tensor& x) const {
  warn_of_single_value("layer_norm", *this, shape_, "its bias");
  return layer_norm(x, shape_, weight, bias, eps_);
}
void LayerNorm::members(Visitor& v) {
  v("weight", weight);
  v("bias", bias);
}
std::string LayerNorm::describe() const {
  return fmt::format("LayerNorm({}{}{})", width_text(shape_), weight.defined() ? "" : ", no gain", bias.defined() ? "" : ", no bias");
}

RMSNorm::RMSNorm(const Shape& normalized_shape, RMSNormLayerOptions options) : shape_(normalized_shape), options_(options) {
  check_shape("rms_norm", shape_);
  check_eps("rms_norm", options.eps.value_or(0));
  if (!(options.partial > 0 && options.partial <= 1)) fail("rms_norm", "partial: expected a value in (0, 1], got {}", options.partial);
  if (options.gain) weight = Parameter(shape_, init::ones());
  if (options.bias) bias = Parameter(shape_, init::zeros());
}
Tensor RMSNorm::operator()(const Tensor& x) const {
  warn_of_single_value("rms_norm", *this, shape_, "its gain, with the input's sign,");
  return rms_norm(x, shape_, weight, bias, {.partial = options_.partial, .eps = options_.eps});
}
void RMSNorm::members(Visitor& v) {
  v("weight", weight);
  v("bias", bias);
}
std::string RMSNorm::describe() const {
  return fmt::format("RMSNorm({}{}{}{})", width_text(shape_), options_.partial < 1 ? fmt::format(", partial {}", options_.partial) : "",
                     weight.defined() ? "" : ", no gain", bias.defined() ? ", bias" : "");
}

GroupNorm::GroupNorm(int64_t groups, int64_t channels, GroupNormOptions options) : groups_(groups), channels_(channels), options_(options) {
  check_eps("group_norm", options.eps);
  if (channels < 0) fail("group_norm", "expected a channel count >= 0, got {}", channels);
  if (groups < 1 || channels % groups != 0) fail("group_norm", "groups: expected a number that divides the {} channels, got {}", channels, groups);
  if (!options.affine) return;
  weight = Parameter({channels}, init::ones());
  bias = Parameter({channels}, init::zeros());
}
Tensor GroupNorm::operator()(const Tensor& x) const {
  if (x.rank() < 2 || x.size(1) != channels_)
    fail("group_norm", "x: expected [N, {0}] or [N, {0}, ...], got {1} (in {2})", channels_, x.shape(), describe());
  return group_norm(x, groups_, weight, bias, options_.eps);
}
void GroupNorm::members(Visitor& v) {
  v("weight", weight);
  v("bias", bias);
}
std::string GroupNorm::describe() const {
  return fmt::format("GroupNorm({} groups of {}{})", groups_, channels_ / groups_, options_.affine ? "" : ", not affine");
}

TrackingNorm::TrackingNorm(int64_t channels, const Settings& settings)
    : channels_(channels), op_(settings.op), rank_min_(settings.rank_min), rank_max_(settings.rank_max) {
  check_eps(op_, settings.eps);
  if (channels < 0) fail(op_, "expected a channel count >= 0, got {}", channels);
  if (!(settings.momentum >= 0 && settings.momentum <= 1)) fail(op_, "momentum: expected a value in [0, 1], got {}", settings.momentum);
  if (settings.gain) weight = Parameter({channels}, init::ones());
  if (settings.bias) bias = Parameter({channels}, init::zeros());
  if (!settings.track) return;
  running_mean = Buffer(Tensor::zeros({channels}));
  if (settings.track_var) running_var = Buffer(Tensor::ones({channels}));
  num_batches_tracked = Buffer(Tensor::zeros({}, DType::i64));
}

void TrackingNorm::members(Visitor& v) {
  v("weight", weight);
  v("bias", bias);
  v("running_mean", running_mean);
  v("running_var", running_var);
  v("num_batches_tracked", num_batches_tracked);
}

void TrackingNorm::check(const Tensor& x) const {
  const Shape& shape = x.shape();
  if (shape.rank() >= rank_min_ && shape.rank() <= rank_max_ && shape.size(1) == channels_) return;
  std::vector<std::string> layouts;
  for (int rank = rank_min_; rank <= rank_max_; ++rank)
    layouts.push_back(fmt::format("[N, {}{}]", channels_, rank == 2 ? "" : rank == 3 ? ", L" : ", H, W"));
  fail(op_, "x: expected {}, got {} (in {})", fmt::join(layouts, " or "), shape, describe());
}

void TrackingNorm::warn_of_wrong_statistics() {
  if (!running_mean.defined() || channels_ == 0) return;
  if (training()) {
    if (!grad_enabled() && !population_pass_) warn_of_training_mode(op_, *this);
  } else if (!std::atomic_ref(evaluated_).exchange(true)) {  // looking costs a wait for the device
    if (num_batches_tracked.tensor().item() == 0 && holds_only(running_mean, 0) && holds_only(running_var, 1))
      warn(op_, fmt::format("{}: evaluated before it has seen a training batch: mean 0 and deviation 1 of its start normalise nothing", title()));
  }
}

void TrackingNorm::begin_population_statistics() {
  if (!running_mean.defined() || population_pass_) return;
  population_pass_ = true;
  former_mean_ = running_mean.tensor().clone();
  if (running_var.defined()) former_var_ = running_var.tensor().clone();
  former_count_ = num_batches_tracked.tensor().clone();
  // Cumulative averages start from a count of 0: the k-th batch gets weight 1/k. Finite values, so that none of an infected average stays.
  running_mean.reset();
  running_var.reset();
  num_batches_tracked.reset();
}

void TrackingNorm::end_population_statistics(bool keep) {
  if (!population_pass_) return;
  population_pass_ = false;
  if (!keep || num_batches_tracked.tensor().item() == 0) {
    running_mean.tensor().copy_(former_mean_);
    if (running_var.defined()) running_var.tensor().copy_(former_var_);
  }
  num_batches_tracked.tensor().copy_(former_count_);
  former_mean_ = former_var_ = former_count_ = Tensor();
}

BatchNorm::BatchNorm(const char* name, int rank_min, int rank_max, int64_t channels, const BatchNormLayerOptions& options)
    : TrackingNorm(channels, {.op = "batch_norm",
                              .rank_min = rank_min,
                              .rank_max = rank_max,
                              .eps = options.eps,
                              .momentum = options.momentum,
                              .gain = options.affine && !options.mean_only,
                              .bias = options.affine,
                              .track = options.track_running_stats,
                              .track_var = !options.mean_only}),
      name_(name),
      options_(options) {}

Tensor BatchNorm::operator()(const Tensor& x) {
  check(x);
  warn_of_wrong_statistics();
  if (from_data() && channels_ > 0 && x.numel() == channels_)
    fail("batch_norm", "x: one value per channel has no {}: got {} (in {}); use a larger batch, or eval()",
         options_.mean_only ? "mean but itself" : "variance", x.shape(), describe());
  return batch_norm(x, weight, bias, running_mean.tensor(), running_var.tensor(), num_batches_tracked.tensor(),
                    {.training = training(),
                     .momentum = options_.momentum,
                     .cumulative = options_.cumulative || population_pass_,
                     .unbiased = options_.unbiased,
                     .mean_only = options_.mean_only,
                     .eps = options_.eps});
}

std::string BatchNorm::describe() const {
  return fmt::format("{}({}{}{}{}{})", name_, channels_, options_.mean_only ? ", mean only" : "", options_.affine ? "" : ", not affine",
                     options_.track_running_stats ? "" : ", no running statistics", options_.unbiased ? ", unbiased" : "");
}

InstanceNorm::InstanceNorm(const char* name, int rank, int64_t channels, const InstanceNormLayerOptions& options)
    : TrackingNorm(channels, {.op = "instance_norm",
                              .rank_min = rank,
                              .rank_max = rank,
                              .eps = options.eps,
                              .momentum = options.momentum,
                              .gain = options.affine,
                              .bias = options.affine,
                              .track = options.track_running_stats,
                              .track_var = true}),
      name_(name),
      options_(options) {}

Tensor InstanceNorm::operator()(const Tensor& x) {
  check(x);
  warn_of_wrong_statistics();
  if (from_data() && x.numel() > 0 && x.numel() == x.size(0) * channels_)
    fail("instance_norm", "x: one value per instance has no variance: got {} (in {})", x.shape(), describe());
  return instance_norm(
      x, weight, bias, running_mean.tensor(), running_var.tensor(), num_batches_tracked.tensor(),
      {.training = training(), .momentum = options_.momentum, .cumulative = options_.cumulative || population_pass_, .eps = options_.eps});
}

std::string InstanceNorm::describe() const {
  return fmt::format("{}({}{}{})", name_, channels_, options_.affine ? ", affine" : "", options_.track_running_stats ? ", running statistics" : "");
}

void warn_of_training_mode(const char* op, const Module& module) {
  warn(op, fmt::format("{}: in training mode while no gradients are recorded: an evaluation would use, and move, the statistics of its own batches; "
                       "call eval() first (to collect statistics: recompute_population_statistics)",
                       module.title()));
}

RunningStatistics* running_statistics(Module* module) {
  if (auto* norm = dynamic_cast<Norm*>(module))
    return std::visit(
        [](auto& layer) -> RunningStatistics* {
          if constexpr (std::is_base_of_v<RunningStatistics, std::decay_t<decltype(layer)>>) return &layer;
          return nullptr;
        },
        norm->layer);
  return dynamic_cast<RunningStatistics*>(module);
}

StatisticsPass::StatisticsPass(Module& model) {
  for (const auto& [path, module] : model.modules()) {
    modes_.emplace_back(module, module->training());
    RunningStatistics* norm = running_statistics(module);
    module->set_training(norm != nullptr);
    if (!norm) continue;
    norm->begin_population_statistics();
    norms_.push_back(norm);
  }
}

StatisticsPass::~StatisticsPass() {
  for (RunningStatistics* norm : norms_) norm->end_population_statistics(keep_);
  for (const auto& [module, training] : modes_) module->set_training(training);
}

void recompute_population_statistics(Module& model, const std::function<void()>& forward) {
  StatisticsPass pass(model);
  const NoGrad no_grad;
  forward();
  pass.keep();
}

}  // namespace lamina::nn
