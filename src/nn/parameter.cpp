#include <bit>
#include <limits>

#include <lamina/autograd/graph.h>
#include <lamina/nn/module.h>

#include "core/format.h"
#include "core/tensor_impl.h"

namespace lamina::nn {

Parameter::Parameter(const Shape& shape, Init init, DType dtype) : init_(init), ready_(std::make_shared<bool>(init.is_constant())) {
  if (!is_float(dtype)) fail("parameter", "expected f32 or f64, got {}", dtype);
  // Not a number until drawn, so that a value read around the check cannot pass for one.
  tensor_ = Tensor::full(shape, init.is_constant() ? init.a : std::numeric_limits<double>::quiet_NaN(), dtype);
  tensor_.set_requires_grad();
}

Parameter::Parameter(const Parameter& other) : init_(other.init_) {
  if (!other.defined()) return;
  tensor_ = other.tensor_.clone();
  tensor_.set_requires_grad(other.tensor_.requires_grad());
  ready_ = std::make_shared<bool>(other.ready());
}

Parameter& Parameter::operator=(const Parameter& other) {
  if (this != &other) *this = Parameter(other);
  return *this;
}

const Tensor& Parameter::value() const {
  if (tensor_.defined() && !*ready_) fail("parameter", "used before init(seed) or load_state_dict: shape {}", tensor_.shape());
  return tensor_;
}

void Parameter::tie(Parameter& other) {
  if (!defined() || !other.defined()) fail("parameter", "tie: one of the two is absent");
  if (shape() != other.shape()) fail("parameter", "tie: expected {}, got {}", shape(), other.shape());
  tensor_ = other.tensor_;
  ready_ = other.ready_;
}

void Parameter::draw(Rng rng) {
  if (!defined()) fail("parameter", "draw: the parameter is absent");
  tensor_.copy_(nn::draw(init_, tensor_.shape(), tensor_.dtype(), rng));
  *ready_ = true;
}

void Parameter::set(const Tensor& value) {
  if (!defined()) fail("parameter", "set: the parameter is absent");
  if (value.shape() != shape()) fail("parameter", "set: expected {}, got {}", shape(), value.shape());
  if (!is_float(value.dtype())) fail("parameter", "set: expected f32 or f64, got {}", value.dtype());
  const NoGrad no_grad;
  tensor_.copy_(value.cast(tensor_.dtype()));
  *ready_ = true;
}

// Whoever holds the tensor (an optimiser, a tied parameter, a graph) sees the new data.
void Parameter::swap_data(const Tensor& data) {
  lamina::detail::TensorImpl& mine = *tensor_.impl();
  mine.storage = data.impl()->storage;
  mine.offset = data.impl()->offset;
  mine.dtype = data.dtype();
  tensor_.zero_grad();
}

void Parameter::to(Device device) {
  if (!defined() || tensor_.device() == device) return;
  const NoGrad no_grad;
  swap_data(tensor_.detach().to(device));
}

void Parameter::cast(DType dtype) {
  if (!is_float(dtype)) fail("parameter", "cast: expected f32 or f64, got {}", dtype);
  if (!defined() || tensor_.dtype() == dtype) return;
  const NoGrad no_grad;
  swap_data(tensor_.detach().cast(dtype));
}

Buffer Buffer::stream() {
  Buffer buffer(Tensor::zeros({2}, DType::i64));
  buffer.is_stream_ = true;
  return buffer;
}

Buffer::Buffer(const Buffer& other) : is_stream_(other.is_stream_) {
  if (!other.defined()) return;
  tensor_ = other.tensor_.clone();
  initial_ = other.initial_.clone();
}

Buffer& Buffer::operator=(const Buffer& other) {
  if (this != &other) *this = Buffer(other);
  return *this;
}

// Key 0 at counter 0 stands for "not set": a named stream has that key once in 2^64.
bool Buffer::ready() const {
  if (!is_stream_) return defined();
  const int64_t* words = tensor_.data<int64_t>();
  return words[0] != 0 || words[1] != 0;
}

Rng Buffer::rng() const {
  if (!is_stream_) fail("buffer", "rng: not a random stream");
  if (!ready()) fail("buffer", "random stream used before init(seed) or load_state_dict");
  const int64_t* words = tensor_.data<int64_t>();
  Rng rng(std::bit_cast<uint64_t>(words[0]));
  rng.counter = std::bit_cast<uint64_t>(words[1]);
  return rng;
}

void Buffer::set_rng(const Rng& rng) {
  if (!is_stream_) fail("buffer", "set_rng: not a random stream");
  int64_t* words = tensor_.mutable_data<int64_t>();
  words[0] = std::bit_cast<int64_t>(rng.key);
  words[1] = std::bit_cast<int64_t>(rng.counter);
}

void Buffer::to(Device device) {
  if (!defined() || is_stream_) return;
  const NoGrad no_grad;
  tensor_ = tensor_.to(device);
}

void Buffer::cast(DType dtype) {
  if (!is_float(dtype)) fail("buffer", "cast: expected f32 or f64, got {}", dtype);
  if (!defined() || !is_float(tensor_.dtype())) return;
  const NoGrad no_grad;
  tensor_ = tensor_.cast(dtype);
  initial_ = initial_.cast(dtype);
}

}  // namespace lamina::nn
