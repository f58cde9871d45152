#pragma once
// Tensor memory, of each device: buffers (64-byte aligned, on GPUs 256) from a size-class free list, so that a training loop in its steady state asks
// nothing of the system. With LAMINA_CUDA_POOL=0 in the environment, tensors on GPUs have allocations of their own instead: for compute-sanitizer.

#include <cstdint>

#include <lamina/core/device.h>

namespace lamina {

struct MemoryStats {
  int64_t current_bytes = 0;       // in live tensors (rounded up to size classes)
  int64_t peak_bytes = 0;          // largest current_bytes since the start or reset_peak_memory()
  int64_t cached_bytes = 0;        // free, held for reuse
  int64_t system_allocations = 0;  // how often the system was asked for memory
};

MemoryStats memory_stats(Device device = Device::cpu());
void reset_peak_memory(Device device = Device::cpu());

/// Gives cached free memory back to the system.
void release_cached_memory(Device device = Device::cpu());

/// Upper bound on live bytes; beyond it allocation throws the out-of-memory error. 0 (the default) means no bound.
void set_memory_limit(int64_t bytes, Device device = Device::cpu());

}  // namespace lamina
