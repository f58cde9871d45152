#include <lamina/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <utility>

#include <lamina/autograd/graph.h>
#include <lamina/ops/elementwise.h>

#include "optim/checks.h"
#include "optim/step.h"

namespace lamina::optim {

std::vector<Group> no_decay_on_vectors(const std::vector<nn::Parameter*>& parameters) {
  std::vector<Group> groups(2);
  groups[1].weight_decay = 0;
  for (nn::Parameter* parameter : parameters) {
    if (!parameter || !parameter->defined()) fail("optimizer", "no_decay_on_vectors: an absent parameter");
    groups[parameter->shape().rank() <= 1 ? 1 : 0].parameters.push_back(parameter);
  }
  return groups;
}

Optimizer::Optimizer(const char* name, std::vector<Group> groups, double lr, double weight_decay)
    : name_(name), groups_(std::move(groups)), lr_(check_not_negative(name, "lr", lr)), memory_(std::make_unique<StepMemory>()) {
  check_not_negative(name, "weight_decay", weight_decay);
  std::unordered_map<const void*, size_t> seen;
  for (const Group& group : groups_) {
    check_not_negative(name, "lr_factor of a group", group.lr_factor);
    if (!std::isfinite(group.weight_decay)) fail(name, "weight_decay of a group: expected a finite value, got {}", group.weight_decay);
    for (nn::Parameter* parameter : group.parameters) {
      const size_t index = entries_.size();
      if (!parameter || !parameter->defined()) fail(name, "parameter {} is absent", index);
      const auto [first, fresh] = seen.try_emplace(parameter->tensor().impl().get(), index);
      if (!fresh) fail(name, "parameters {} and {} are the same tensor {}; list tied parameters once", first->second, index, parameter->shape());
      entries_.push_back({parameter, group.lr_factor, group.weight_decay < 0 ? weight_decay : group.weight_decay});
    }
  }
  if (entries_.empty()) fail(name, "no parameters to optimise");
  missed_.resize(entries_.size());
}

Optimizer::~Optimizer() = default;

void Optimizer::zero_grad() {
  for (const Entry& entry : entries_) entry.parameter->tensor().zero_grad();
}

void Optimizer::set_lr(double lr) { lr_ = check_not_negative(name_, "lr", lr); }

bool Optimizer::step() {
  queue_step({});
  if (!check_finite || progress().finite) return true;
  restart();
  return false;
}

std::optional<Device> Optimizer::device() const {
  std::optional<Device> device;
  for (const Entry& entry : entries_) {
    if (!gradient_of(*entry.parameter)) continue;
    const Device here = entry.parameter->tensor().device();
    if (device && !(here == *device)) fail(name_, "the parameters are on {} and {}; expected all on one device", *device, here);
    device = here;
  }
  return device;
}

void Optimizer::set_steps(const std::vector<int64_t>& steps) {
  steps_ = *std::ranges::max_element(steps);
  for (size_t i = 0; i < steps.size(); ++i) missed_[i] = steps_ - steps[i];
  memory_->forget();
}

void Optimizer::queue_step(const QueuedStep& what) {
  const Device here = device().value_or(what.loss.defined() ? what.loss.device() : Device::cpu());
  if (what.loss.defined() && !(what.loss.device() == here))
    fail(name_, "loss: expected it on {} as the parameters, got {}; move it with to()", here, what.loss.device());
  memory_->prepare(here, {.t = steps_, .lr = lr_, .loss_sum = loss_start_});
  memory_->set_lr(lr_);
  inspect(here, what);
  if (here.is_cpu() && memory_->state()->finite == 0) return;
  left_alone_.clear();
  for (size_t i = 0; i < entries_.size(); ++i)
    if (!gradient_of(*entries_[i].parameter)) left_alone_.push_back(i);
  repeat_step();
  update(here, memory_->state());
}

void Optimizer::send_lr() {
  if (memory_->defined()) memory_->set_lr(lr_);
}

void Optimizer::repeat_step() {
  ++steps_;
  for (const size_t i : left_alone_) ++missed_[i];
}

namespace {

double clip_factor(double norm, double max_norm) { return max_norm / (norm + 1e-6); }

/// What StepKernels::inspect does, on the host.
void judge(kernels::StepState& state, const Optimizer::QueuedStep& what, double squares, bool gradients_finite) {
  const double loss = what.loss.defined() ? what.loss.item() : 0, norm = std::sqrt(squares);
  state.loss = loss;
  state.at_loss = !std::isfinite(loss);
  if (state.at_loss || !gradients_finite || !std::isfinite(norm)) {
    state.finite = 0;
    return;
  }
  ++state.t;
  state.grad_scale = what.clip_norm > 0 ? std::min(1.0, clip_factor(norm, what.clip_norm)) : 1.0;
  state.loss_sum += loss * static_cast<double>(what.items);
}

}  // namespace

void Optimizer::inspect(Device device, const QueuedStep& what) {
  if (device.is_cpu()) {
    kernels::StepState& state = *memory_->state();
    if (state.finite == 0) return;
    double squares = 0;
    bool finite = true;
    for (const Entry& entry : entries_) {
      detail::Gradient* gradient = gradient_of(*entry.parameter);
      if (!gradient) continue;
      if (what.clip_norm > 0) squares += detail::sum_of_squares(*gradient);
      if (check_finite && finite) finite = detail::all_finite(*gradient, entry.parameter->shape());
    }
    return judge(state, what, squares, finite);
  }
  std::vector<kernels::StepKernels::Gradient<float>> f32;
  std::vector<kernels::StepKernels::Gradient<double>> f64;
  for (const Entry& entry : entries_) {
    const detail::Gradient* gradient = gradient_of(*entry.parameter);
    if (!gradient) continue;
    const Tensor& g = gradient->dense;
    if (g.dtype() == DType::f32)
      f32.push_back({g.numel(), g.data<float>()});
    else
      f64.push_back({g.numel(), g.data<double>()});
  }
  const bool is_f32 = what.loss.defined() && what.loss.dtype() == DType::f32, is_f64 = what.loss.defined() && !is_f32;
  kernels::CudaBackend::use(device.index);
  kernels::CudaBackend::step().inspect(memory_->state(), {.f32 = f32,
                                                          .f64 = f64,
                                                          .max_norm = what.clip_norm,
                                                          .check = check_finite,
                                                          .loss_f32 = is_f32 ? what.loss.data<float>() : nullptr,
                                                          .loss_f64 = is_f64 ? what.loss.data<double>() : nullptr,
                                                          .items = static_cast<double>(what.items)});
}

Optimizer::Progress Optimizer::progress() {
  if (!memory_->defined()) return {steps_, true, false, 0, loss_start_};
  const kernels::StepState state = memory_->read();
  const int64_t left_out = std::exchange(steps_, state.t) - state.t;
  for (const size_t i : left_alone_) missed_[i] -= std::min(left_out, missed_[i]);
  return {state.t, state.finite != 0, state.at_loss != 0, state.loss, state.loss_sum};
}

void Optimizer::restart(double loss_sum) {
  loss_start_ = loss_sum;
  if (memory_->defined()) memory_->write({.t = steps_, .lr = lr_, .loss_sum = loss_sum});
}

double clip_grad_norm(const std::vector<nn::Parameter*>& parameters, double max_norm) {
  if (!(max_norm > 0)) fail("clip_grad_norm", "max_norm: expected a value > 0, got {}", max_norm);
  std::vector<const detail::Gradient*> gradients;
  for (const nn::Parameter* parameter : parameters)
    if (const detail::Gradient* gradient = gradient_of(*parameter)) gradients.push_back(gradient);
  const double norm = std::sqrt(detail::sum_of_squares(gradients)), factor = clip_factor(norm, max_norm);
  if (!std::isfinite(norm) || factor >= 1) return norm;
  for (const nn::Parameter* parameter : parameters)
    if (detail::Gradient* gradient = gradient_of(*parameter)) detail::rescale(*gradient, factor);
  return norm;
}

void clip_grad_value(const std::vector<nn::Parameter*>& parameters, double limit) {
  if (!(limit > 0)) fail("clip_grad_value", "limit: expected a value > 0, got {}", limit);
  const NoGrad no_grad;
  for (nn::Parameter* parameter : parameters)
    if (gradient_of(*parameter)) parameter->tensor().set_grad(clamp(parameter->grad(), -limit, limit));
}

}  // namespace lamina::optim
