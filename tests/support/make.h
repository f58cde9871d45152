#pragma once
// Tensors on the device of the tests. What a library's factory makes on the CPU is for tests that want it there.

#include <initializer_list>
#include <vector>

#include <lamina/core/tensor.h>

#include "support/device.h"

namespace lamina::test {

template <class T>
Tensor tensor(const std::vector<T>& values, const Shape& shape) {
  return Tensor::from(values, shape, device());
}
template <class T>
Tensor tensor(std::initializer_list<T> values, const Shape& shape) {
  return Tensor::from(values, shape, device());
}
inline Tensor empty(const Shape& shape, DType dtype = DType::f32) { return Tensor::empty(shape, dtype, device()); }
inline Tensor zeros(const Shape& shape, DType dtype = DType::f32) { return Tensor::zeros(shape, dtype, device()); }
inline Tensor ones(const Shape& shape, DType dtype = DType::f32) { return Tensor::ones(shape, dtype, device()); }
inline Tensor full(const Shape& shape, double value, DType dtype = DType::f32) { return Tensor::full(shape, value, dtype, device()); }
inline Tensor scalar(double value, DType dtype = DType::f32) { return Tensor::scalar(value, dtype, device()); }
inline Tensor arange(int64_t count, DType dtype = DType::i64) { return Tensor::arange(count, dtype, device()); }

/// One element, by its position in row-major order.
inline double element(const Tensor& x, int64_t position) {
  return with_type(x.dtype(), [&](auto zero) { return static_cast<double>(x.to_vector<decltype(zero)>().at(static_cast<size_t>(position))); });
}
/// Writes one element, as any change in place does.
inline void set_element(Tensor& x, int64_t position, double value) {
  with_type(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    std::vector<T> values = x.to_vector<T>();
    values.at(static_cast<size_t>(position)) = static_cast<T>(value);
    x.detach().copy_(Tensor::from(values, x.shape()));
    return 0;
  });
}

}  // namespace lamina::test
