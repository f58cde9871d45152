#include <lamina/core/tensor.h>

#include <cmath>
#include <numeric>

#include "core/format.h"
#include "core/memory_pool.h"
#include "core/tensor_impl.h"
#include "kernels/kernels.h"

namespace lamina {

namespace detail {

Storage::Storage(int64_t count, Device where) : data(allocate(count, where)), bytes(count), device(where) {}
Storage::~Storage() { release(data, bytes, device); }

Tensor view(const Tensor& base, const Shape& shape, int64_t offset) {
  auto impl = std::make_shared<TensorImpl>();
  impl->storage = base.impl()->storage;
  impl->offset = base.impl()->offset + offset;
  impl->shape = shape;
  impl->dtype = base.dtype();
  return Tensor(std::move(impl));
}

void check_representable(const char* op, DType dtype, double value, const char* advice) {
  if (is_float(dtype)) return;
  const double limit = dtype == DType::u8 ? 255.0 : 0x1p53, lowest = dtype == DType::u8 ? 0.0 : -limit;
  if (!(value == std::trunc(value) && value >= lowest && value <= limit)) fail(op, "{} is not a value of {}{}", value, dtype, advice);
}

}  // namespace detail

namespace {

detail::TensorImpl& checked(const std::shared_ptr<detail::TensorImpl>& impl) {
  if (!impl) fail("tensor", "used before it was given a value (an undefined tensor)");
  return *impl;
}

template <class T>
void check_type(const detail::TensorImpl& impl) {
  if (impl.dtype != dtype_of<T>()) fail("tensor", "asked for {} data, but the tensor is {} {}", dtype_of<T>(), impl.dtype, impl.shape);
}

/// Copies between any two devices. Two GPUs have a stream each: the host waits for what makes the source, and until the source may be given back.
void move_across(Tensor& target, const Tensor& source) {
  const bool between_gpus = !source.device().is_cpu() && !target.device().is_cpu() && !(source.device() == target.device());
  if (between_gpus) synchronize(source.device());
  kernels::move(target.device().is_cpu() ? source.device() : target.device())->copy(target.nbytes(), source.raw_data(), target.mutable_raw_data());
  if (between_gpus) synchronize(target.device());
}

void check_in_place(const detail::TensorImpl& impl, const char* op) {
  if (impl.node) fail(op, "the tensor {} was computed by the graph; change a leaf, or a detach() or clone() of it", impl.shape);
}

}  // namespace

Tensor Tensor::empty(const Shape& shape, DType dtype, Device device) {
  int64_t bytes = 0;
  if (__builtin_mul_overflow(shape.numel(), static_cast<int64_t>(size_of(dtype)), &bytes)) fail("tensor", "{} of {} is too large", shape, dtype);
  auto impl = std::make_shared<detail::TensorImpl>();
  impl->storage = std::make_shared<detail::Storage>(bytes, device);
  impl->shape = shape;
  impl->dtype = dtype;
  return Tensor(std::move(impl));
}

Tensor Tensor::zeros(const Shape& shape, DType dtype, Device device) { return full(shape, 0.0, dtype, device); }
Tensor Tensor::ones(const Shape& shape, DType dtype, Device device) { return full(shape, 1.0, dtype, device); }
Tensor Tensor::scalar(double value, DType dtype, Device device) { return full({}, value, dtype, device); }

Tensor Tensor::full(const Shape& shape, double value, DType dtype, Device device) {
  detail::check_representable("full", dtype, value);
  Tensor result = empty(shape, dtype, device);
  kernels::move(device)->fill(dtype, result.numel(), value, result.mutable_raw_data());
  return result;
}

Tensor Tensor::arange(int64_t count, DType dtype, Device device) {
  Tensor result = empty({count}, dtype, device);
  kernels::move(device)->iota(dtype, count, 0, 1, result.mutable_raw_data());
  return result;
}

template <class T>
Tensor Tensor::from(std::span<const T> values, const Shape& shape, Device device) {
  if (static_cast<int64_t>(values.size()) != shape.numel()) fail("tensor", "from: {} needs {} values, got {}", shape, shape.numel(), values.size());
  Tensor result = empty(shape, dtype_of<T>(), device);
  kernels::move(device)->copy(result.nbytes(), values.data(), result.mutable_raw_data());
  return result;
}

const Shape& Tensor::shape() const { return checked(impl_).shape; }
DType Tensor::dtype() const { return checked(impl_).dtype; }
Device Tensor::device() const { return checked(impl_).storage->device; }
int64_t Tensor::nbytes() const { return numel() * static_cast<int64_t>(size_of(dtype())); }

const void* Tensor::raw_data() const { return checked(impl_).bytes(); }

void* Tensor::mutable_raw_data() {
  detail::TensorImpl& impl = checked(impl_);
  impl.storage->version.fetch_add(1, std::memory_order_relaxed);
  return impl.bytes();
}

template <class T>
const T* Tensor::data() const {
  check_type<T>(checked(impl_));
  return static_cast<const T*>(raw_data());
}

template <class T>
T* Tensor::mutable_data() {
  check_type<T>(checked(impl_));
  return static_cast<T*>(mutable_raw_data());
}

double Tensor::item() const {
  if (numel() != 1) fail("item", "expected a tensor with one element, got {}", shape());
  return with_type(dtype(), [&](auto zero) {
    decltype(zero) value{};
    copy_to(std::span(&value, 1));
    return static_cast<double>(value);
  });
}

template <class T>
std::vector<T> Tensor::to_vector() const {
  std::vector<T> result(static_cast<size_t>(numel()));
  copy_to(std::span<T>(result));
  return result;
}

template <class T>
void Tensor::copy_to(std::span<T> out) const {
  check_type<T>(checked(impl_));
  if (static_cast<int64_t>(out.size()) != numel()) fail("copy_to", "{} has {} elements, the target {}", shape(), numel(), out.size());
  kernels::move(device())->copy(nbytes(), raw_data(), out.data());
}

Tensor Tensor::clone() const {
  Tensor result = empty(shape(), dtype(), device());
  kernels::move(device())->copy(nbytes(), raw_data(), result.mutable_raw_data());
  return result;
}

void Tensor::fill_(double value) {
  check_in_place(checked(impl_), "fill_");
  detail::check_representable("fill_", dtype(), value);
  kernels::move(device())->fill(dtype(), numel(), value, mutable_raw_data());
}

void Tensor::copy_(const Tensor& source) {
  check_in_place(checked(impl_), "copy_");
  if (source.shape() != shape() || source.dtype() != dtype())
    fail("copy_", "expected {} {}, got {} {}", dtype(), shape(), source.dtype(), source.shape());
  if (raw_data() == source.raw_data()) return;
  // Two slices of one buffer may overlap: threads that copy their parts must not read what others have written.
  const char *const mine = impl_->bytes(), *const theirs = source.impl()->bytes();
  if (impl_->storage == source.impl()->storage && mine < theirs + nbytes() && theirs < mine + nbytes()) return copy_(source.clone());
  move_across(*this, source);
}

Tensor Tensor::detach() const {
  checked(impl_);
  return detail::view(*this, shape());
}

// The element types that a tensor can hold.
#define LAMINA_INSTANTIATE(T)                                             \
  template Tensor Tensor::from(std::span<const T>, const Shape&, Device); \
  template const T* Tensor::data<T>() const;                              \
  template T* Tensor::mutable_data<T>();                                  \
  template std::vector<T> Tensor::to_vector<T>() const;                   \
  template void Tensor::copy_to<T>(std::span<T>) const;
LAMINA_INSTANTIATE(float)
LAMINA_INSTANTIATE(double)
LAMINA_INSTANTIATE(int64_t)
LAMINA_INSTANTIATE(uint8_t)
#undef LAMINA_INSTANTIATE

}  // namespace lamina
