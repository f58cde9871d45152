#include <lamina/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include <lamina/autograd/graph.h>
#include <lamina/ops/elementwise.h>

#include "optim/checks.h"

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
    : name_(name), groups_(std::move(groups)), lr_(check_not_negative(name, "lr", lr)) {
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
}

void Optimizer::zero_grad() {
  for (const Entry& entry : entries_) entry.parameter->tensor().zero_grad();
}

void Optimizer::set_lr(double lr) { lr_ = check_not_negative(name_, "lr", lr); }

bool Optimizer::gradients_finite() const {
  return std::ranges::all_of(entries_, [](const Entry& entry) {
    detail::Gradient* gradient = gradient_of(*entry.parameter);
    return !gradient || detail::all_finite(*gradient, entry.parameter->shape());
  });
}

double clip_grad_norm(const std::vector<nn::Parameter*>& parameters, double max_norm) {
  if (!(max_norm > 0)) fail("clip_grad_norm", "max_norm: expected a value > 0, got {}", max_norm);
  double squares = 0;
  for (const nn::Parameter* parameter : parameters)
    if (const detail::Gradient* gradient = gradient_of(*parameter)) squares += detail::sum_of_squares(*gradient);
  const double norm = std::sqrt(squares);
  const double factor = max_norm / (norm + 1e-6);
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
