#pragma once
// GPUs as the host's side of kernels sees them. CudaBackend in kernels/kernels.h has what the rest of lamina asks.

#include <cstddef>

namespace lamina::kernels::cuda {

/// The most GPUs of a machine that can be used.
constexpr int most_devices = 64;

/// The current GPU of this thread.
int current_device();

/// The GPU whose memory p is; -1 for host memory, pinned or not.
int device_of(const void* p);

/// Queues a copy from host memory, which may be changed as soon as this returns: it goes through pinned memory.
void copy_from_host(void* device, const void* host, size_t bytes);
/// Copies to host memory and waits for it.
void copy_to_host(void* host, const void* device, size_t bytes);

}  // namespace lamina::kernels::cuda
