#pragma once
// Memory that a kernel needs while it runs, from the tensor pool (so that nothing is asked of the system in a training loop's steady state).

#include <lamina/core/device.h>

#include <cstdint>
#include <memory>

#include "core/memory_pool.h"

namespace lamina::kernels {

template <class T>
class Scratch {
 public:
  explicit Scratch(int64_t count)
      : bytes_(count * static_cast<int64_t>(sizeof(T))), data_(static_cast<T*>(lamina::detail::allocate(bytes_, Device::cpu()))) {}
  ~Scratch() { lamina::detail::release(data_, bytes_, Device::cpu()); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  /// Not initialised; 64-byte aligned, null for 0 elements.
  T* data() const { return data_; }

 private:
  int64_t bytes_;
  T* data_;
};

/// The same, kept as long as somebody has it.
template <class T>
std::shared_ptr<T> shared_scratch(int64_t count) {
  const auto scratch = std::make_shared<Scratch<T>>(count);
  return {scratch, scratch->data()};
}

}  // namespace lamina::kernels
