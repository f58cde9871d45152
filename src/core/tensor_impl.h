#pragma once
// What a Tensor handle points to. Private: everything outside goes through Tensor.

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include <lamina/core/tensor.h>

#include "core/gradient.h"

namespace lamina {

namespace autograd {
struct Node;
}

namespace detail {

using Hook = std::function<Tensor(const Tensor&)>;

/// A buffer and the count of its changes, shared by all tensors that view it.
struct Storage {
  Storage(int64_t bytes, Device device);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  void* const data;
  const int64_t bytes;
  const Device device;
  std::atomic<uint64_t> version{0};
};

struct TensorImpl {
  std::shared_ptr<Storage> storage;
  int64_t offset = 0;  // bytes
  Shape shape;
  DType dtype = DType::f32;
  bool requires_grad = false;

  // A tensor that the graph computed is output `output` of `node`; a leaf has none.
  std::shared_ptr<autograd::Node> node;
  int output = 0;

  Gradient gradient;        // of a leaf, or of a computed tensor with retain_grad()
  std::vector<Hook> hooks;  // of a leaf; a computed tensor's hooks live in its node

  char* bytes() const { return static_cast<char*>(storage->data) + offset; }
};

/// A tensor of another shape on the same buffer, `offset` bytes further, without history.
Tensor view(const Tensor& base, const Shape& shape, int64_t offset = 0);

/// Throws Error unless `value` is one of an integer dtype's (i64: up to 2^53 in size, beyond which a double no longer names one integer), instead of
/// rounding it. `advice` ends the message.
void check_representable(const char* op, DType dtype, double value, const char* advice = "");

}  // namespace detail
}  // namespace lamina
