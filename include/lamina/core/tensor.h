#pragma once
// Tensor: a cheap handle on a shared buffer with a shape, a dtype and a device. Row-major and contiguous, always.
// Copying a handle shares everything (buffer, gradient, place in the graph); clone() copies the values.

#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <lamina/core/device.h>
#include <lamina/core/dtype.h>
#include <lamina/core/shape.h>

namespace lamina {

namespace detail {
struct TensorImpl;
}

class Tensor {
 public:
  /// An undefined tensor: defined() is false, everything else throws.
  Tensor() = default;

  // -- making -------------------------------------------------------------------------------------------------------
  static Tensor empty(const Shape& shape, DType dtype = DType::f32, Device device = Device::cpu());  // values unspecified
  static Tensor zeros(const Shape& shape, DType dtype = DType::f32, Device device = Device::cpu());
  static Tensor ones(const Shape& shape, DType dtype = DType::f32, Device device = Device::cpu());
  /// full, scalar and fill_ throw Error for a value that an integer dtype does not have (2.5, NaN; -1 for u8), as arithmetic with numbers does.
  static Tensor full(const Shape& shape, double value, DType dtype = DType::f32, Device device = Device::cpu());
  static Tensor scalar(double value, DType dtype = DType::f32, Device device = Device::cpu());
  /// 0, 1, ..., count-1.
  static Tensor arange(int64_t count, DType dtype = DType::i64, Device device = Device::cpu());
  /// A copy of `values`, whose count must be the shape's. T: float, double, int64_t, uint8_t.
  template <class T>
  static Tensor from(std::span<const T> values, const Shape& shape, Device device = Device::cpu());
  template <class T>
  static Tensor from(std::initializer_list<T> values, const Shape& shape, Device device = Device::cpu()) {
    return from(std::span<const T>(values.begin(), values.size()), shape, device);
  }
  template <class T>
  static Tensor from(const std::vector<T>& values, const Shape& shape, Device device = Device::cpu()) {
    return from(std::span<const T>(values), shape, device);
  }

  // -- what it is ---------------------------------------------------------------------------------------------------
  bool defined() const { return impl_ != nullptr; }
  const Shape& shape() const;
  int rank() const { return shape().rank(); }
  int64_t size(int axis) const { return shape().size(axis); }
  int64_t numel() const { return shape().numel(); }
  DType dtype() const;
  Device device() const;
  int64_t nbytes() const;
  /// Whether both handles are the same tensor (not: equal values).
  bool is_same(const Tensor& other) const { return impl_ == other.impl_; }

  // -- values -------------------------------------------------------------------------------------------------------
  /// The elements, row-major. Throws Error when T is not the dtype. A device tensor gives a device pointer.
  template <class T>
  const T* data() const;
  /// The same for writing; counts as a change, so a graph that saved these values refuses to run backward.
  template <class T>
  T* mutable_data();
  const void* raw_data() const;
  void* mutable_raw_data();

  /// The value of a one-element tensor, as double. Throws Error for other counts. Waits for the device.
  double item() const;
  /// All elements, row-major, on the host.
  template <class T>
  std::vector<T> to_vector() const;
  /// Copies the elements into `out`, whose size must be numel().
  template <class T>
  void copy_to(std::span<T> out) const;

  Tensor clone() const;            // a new buffer, no graph
  Tensor to(Device device) const;  // differentiable; the same handle if already there
  Tensor cast(DType dtype) const;  // differentiable between f32 and f64; float to integer truncates toward zero

  /// In place, outside the graph (throws Error on a tensor that the graph computed). They count as changes.
  void fill_(double value);
  void copy_(const Tensor& source);  // same shape and dtype; crosses devices

  /// Values as text, e.g. "f32 [2, 3]\n[[1, 2, 3],\n [4, 5, 6]]"; long axes are abbreviated.
  std::string str() const;

  // -- graph --------------------------------------------------------------------------------------------------------
  bool requires_grad() const;
  /// For leaves; throws Error on i64 or u8 and on a tensor computed by the graph.
  Tensor& set_requires_grad(bool on = true);
  bool is_leaf() const;
  /// The accumulated gradient of a leaf (undefined before the first backward or after zero_grad).
  /// Also of a computed tensor for which retain_grad() was called before backward.
  Tensor grad() const;
  void set_grad(const Tensor& grad);  // undefined clears it; else same shape, dtype and device
  void zero_grad();
  void retain_grad();
  /// The same values without history. Shares the buffer.
  Tensor detach() const;
  /// Runs the graph backward from this scalar (or with the cotangent `dy`, of this tensor's shape), adds into the grad() of every leaf
  /// that requires one, and frees the graph unless `retain_graph`. Throws Error for a non-scalar without dy, a tensor without graph,
  /// a graph already freed, or a saved tensor changed since.
  void backward(const Tensor& dy = Tensor(), bool retain_graph = false) const;
  /// `hook(g)` is called with the complete gradient of this tensor during backward; a defined return value replaces it.
  void register_hook(std::function<Tensor(const Tensor&)> hook);

  const std::shared_ptr<detail::TensorImpl>& impl() const { return impl_; }
  explicit Tensor(std::shared_ptr<detail::TensorImpl> impl) : impl_(std::move(impl)) {}

 private:
  std::shared_ptr<detail::TensorImpl> impl_;
};

}  // namespace lamina
