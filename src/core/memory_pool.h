#pragma once
// The allocator under every tensor buffer: see lamina/core/memory.h.

#include <cstddef>
#include <cstdint>

#include <lamina/core/device.h>

namespace lamina::detail {

/// 64-byte aligned memory for at least `bytes` (0 gives null). Throws Error with bytes wanted and held.
void* allocate(int64_t bytes, Device device);
void release(void* pointer, int64_t bytes, Device device);

}  // namespace lamina::detail
