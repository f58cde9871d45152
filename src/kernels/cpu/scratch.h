#pragma once
// Memory that a kernel needs while it runs, from the tensor pool (so that nothing is asked of the system in a training loop's steady state).

#include <lamina/core/device.h>

#include <cstdint>

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

}  // namespace lamina::kernels
