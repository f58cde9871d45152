#pragma once
// Vectors on the device, for tests of CUDA kernels: on a GPU, or under the emulator, which checks every access.

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace lamina::test {

inline void require_success(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(status));
}

/// n elements of device memory, `shift` elements after a 256-byte boundary: 0 allows 16-byte accesses, 1 does not. What is not given is not written.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t n, size_t shift = 0) : n_(n), shift_(shift) {
    if (n > 0) require_success(cudaMalloc(reinterpret_cast<void**>(&memory_), (n + shift) * sizeof(T)));
  }
  explicit DeviceArray(const std::vector<T>& values, size_t shift = 0) : DeviceArray(values.size(), shift) {
    if (n_ > 0) require_success(cudaMemcpy(data(), values.data(), n_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~DeviceArray() { static_cast<void>(cudaFree(memory_)); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() const { return memory_ ? memory_ + shift_ : nullptr; }
  std::vector<T> host() const {
    std::vector<T> values(n_);
    require_success(cudaDeviceSynchronize());
    if (n_ > 0) require_success(cudaMemcpy(values.data(), data(), n_ * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  size_t n_, shift_;
  T* memory_ = nullptr;
};

}  // namespace lamina::test
