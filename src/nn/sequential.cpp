#include <lamina/nn/sequential.h>

#include <lamina/core/warning.h>
#include <lamina/nn/layers.h>
#include <lamina/nn/norm.h>

#include "core/format.h"

namespace lamina::nn {

namespace {

/// Whether it takes each feature's mean over the batch off x [N, C].
bool takes_means_off(const Module* module) {
  if (const auto* norm = dynamic_cast<const Norm*>(module)) return std::holds_alternative<BatchNorm1d>(norm->layer);
  return dynamic_cast<const BatchNorm1d*>(module) != nullptr;
}

}  // namespace

Sequential::Sequential(const Sequential& other) : Module(other), told_of_biases_(other.told_of_biases_) {
  layers_.reserve(other.layers_.size());
  for (const auto& slot : other.layers_) layers_.push_back(slot->copy());
}

Sequential& Sequential::operator=(const Sequential& other) {
  if (this != &other) *this = Sequential(other);
  return *this;
}

Tensor Sequential::operator()(const Tensor& x) {
  if (!told_of_biases_ && training() && x.rank() == 2) warn_of_dead_biases();
  Tensor y = x;
  for (const auto& slot : layers_) y = slot->forward(y);
  return y;
}

void Sequential::members(Visitor& v) {
  for (size_t i = 0; i < layers_.size(); ++i)
    if (Module* module = layers_[i]->module()) v(std::to_string(i), *module);
}

Module* Sequential::outer_layer(size_t index, bool last) const {
  Module* const module = layers_[index]->module();
  const auto* nested = dynamic_cast<Sequential*>(module);
  if (!nested) return module;
  return nested->layers_.empty() ? nullptr : nested->outer_layer(last ? nested->layers_.size() - 1 : 0, last);
}

void Sequential::warn_of_dead_biases() {
  told_of_biases_ = true;
  for (size_t i = 0; i + 1 < layers_.size(); ++i) {
    const auto* linear = dynamic_cast<Linear*>(outer_layer(i, true));
    const Module* const next = outer_layer(i + 1, false);
    if (linear && linear->bias.defined() && !linear->bias.frozen() && takes_means_off(next))
      warn("linear",
           fmt::format("{}: its bias does nothing, since {} after it takes every mean off; leave it out: Linear(in, out, {{.bias = false}})",
                       linear->title(), next->title()));
  }
}

void Sequential::fail_at(size_t index) const {
  if (index >= layers_.size()) fail("sequential", "at: expected an index below {}, got {}", layers_.size(), index);
  Module* module = layers_[index]->module();
  fail("sequential", "at({}): the layer is of another type: {}", index, module ? module->describe() : "a plain function");
}

}  // namespace lamina::nn
