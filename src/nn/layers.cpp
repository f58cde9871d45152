#include <lamina/nn/layers.h>

#include <cmath>

#include <lamina/ops/dropout.h>
#include <lamina/ops/matmul.h>
#include <lamina/ops/shape_ops.h>

#include "core/format.h"

namespace lamina::nn {

namespace {

Shape matrix(const char* layer, int64_t rows, int64_t columns) {
  if (rows < 0 || columns < 0) fail(layer, "expected sizes >= 0, got {} and {}", rows, columns);
  return {rows, columns};
}

}  // namespace

Linear::Linear(int64_t in, int64_t out, LinearOptions options) {
  const Shape shape = matrix("linear", out, in);
  const Init weight_init = options.weight_init.value_or(init::pytorch_default(shape));
  if (options.weight_norm)
    weight_norm = WeightNorm(shape, weight_init);
  else
    weight = Parameter(shape, weight_init);
  if (options.bias) bias = Parameter({out}, options.bias_init.value_or(init::pytorch_default(shape)));
}
Tensor Linear::operator()(const Tensor& x) const {
  if (weight_norm.awaits_data()) weight_norm.set_from_data(linear(x, weight_norm.direction()), -1, bias);
  const Tensor w = weight_norm.defined() ? weight_norm.value() : weight.value();  // first, so that it is the weight that an error names
  return linear(x, w, bias);
}
void Linear::members(Visitor& v) {
  v("weight", weight);
  weight_norm.members(v, "weight");
  v("bias", bias);
}
std::string Linear::describe() const {
  const Shape& shape = weight_norm.defined() ? weight_norm.v.shape() : weight.shape();
  return fmt::format("Linear({} -> {}{}{})", shape.size(1), shape.size(0), weight_norm.defined() ? ", weight norm" : "",
                     bias.defined() ? "" : ", no bias");
}

Embedding::Embedding(int64_t count, int64_t width, int64_t padding) : padding_(padding) {
  const Shape shape = matrix("embedding", count, width);
  if (padding < -1 || padding >= count) fail("embedding", "padding: expected -1 (none) or a row of {}, got {}", shape, padding);
  Init init = init::normal(1);
  init.zero_row = padding;
  weight = Parameter(shape, init);
}
Tensor Embedding::operator()(const Tensor& ids) const { return embedding(ids, weight, padding_); }
void Embedding::members(Visitor& v) { v("weight", weight); }
std::string Embedding::describe() const {
  const std::string padding = padding_ < 0 ? "" : fmt::format(", padding {}", padding_);
  return fmt::format("Embedding({} x {}{})", weight.shape().size(0), weight.shape().size(1), padding);
}

Dropout::Dropout(double p) : rng(Buffer::stream()), p_(p) {
  if (!(p >= 0 && p <= 1)) fail("dropout", "p: expected a probability in [0, 1], got {}", p);
}
Tensor Dropout::operator()(const Tensor& x) {
  if (!training() || p_ == 0) return x;
  if (!rng.ready()) fail("dropout", "used in training before init(seed) or load_state_dict set its random stream (in {})", describe());
  Rng position = rng.rng();
  const Tensor y = dropout(x, p_, position);
  rng.set_rng(position);
  return y;
}
void Dropout::members(Visitor& v) { v("rng", rng); }
std::string Dropout::describe() const { return fmt::format("Dropout({})", p_); }

Function ReLU() {
  return {"ReLU", [](const Tensor& x) { return relu(x); }};
}
Function LeakyReLU(double slope) {
  return {fmt::format("LeakyReLU({})", slope), [slope](const Tensor& x) { return leaky_relu(x, slope); }};
}
Function Tanh() {
  return {"Tanh", [](const Tensor& x) { return tanh(x); }};
}
Function Sigmoid() {
  return {"Sigmoid", [](const Tensor& x) { return sigmoid(x); }};
}
Function GELU(Gelu form) {
  return {form == Gelu::exact ? "GELU" : "GELU(tanh)", [form](const Tensor& x) { return gelu(x, form); }};
}
Function SiLU() {
  return {"SiLU", [](const Tensor& x) { return silu(x); }};
}
Function Softplus() {
  return {"Softplus", [](const Tensor& x) { return softplus(x); }};
}
Function Flatten() {
  return {"Flatten", [](const Tensor& x) {
            if (x.rank() < 1) fail("flatten", "expected [N, ...], got {}", x.shape());
            return x.rank() == 1 ? unsqueeze(x, 1) : flatten(x, 1);
          }};
}

}  // namespace lamina::nn
