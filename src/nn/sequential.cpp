#include <lamina/nn/sequential.h>

#include "core/format.h"

namespace lamina::nn {

Sequential::Sequential(const Sequential& other) : Module(other) {
  layers_.reserve(other.layers_.size());
  for (const auto& slot : other.layers_) layers_.push_back(slot->copy());
}

Sequential& Sequential::operator=(const Sequential& other) {
  if (this != &other) *this = Sequential(other);
  return *this;
}

Tensor Sequential::operator()(const Tensor& x) {
  Tensor y = x;
  for (const auto& slot : layers_) y = slot->forward(y);
  return y;
}

void Sequential::members(Visitor& v) {
  for (size_t i = 0; i < layers_.size(); ++i)
    if (Module* module = layers_[i]->module()) v(std::to_string(i), *module);
}

void Sequential::fail_at(size_t index) const {
  if (index >= layers_.size()) fail("sequential", "at: expected an index below {}, got {}", layers_.size(), index);
  Module* module = layers_[index]->module();
  fail("sequential", "at({}): the layer is of another type: {}", index, module ? module->describe() : "a plain function");
}

}  // namespace lamina::nn
