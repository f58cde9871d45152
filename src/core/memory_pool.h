#pragma once
// The allocator under every tensor buffer: see lamina/core/memory.h.

#include <cstddef>
#include <cstdint>

#include <lamina/core/device.h>

namespace lamina::detail {

/// 64-byte aligned memory for at least `bytes` (0 gives null). Throws Error with bytes wanted and held.
void* allocate(int64_t bytes, Device device);
void release(void* pointer, int64_t bytes, Device device);

/// The buffers that a captured step works in: its graph writes to them whenever it runs, so nobody else may have them while it lives.
/// Until close_arena(), buffers are taken from those that are cached, and become the arena's: released, they serve the arena alone. What was not
/// cached cannot be had (a capture must not allocate): Error. One arena of a device is open at a time.
int open_arena(Device device);
void close_arena(Device device);
/// Its buffers are everybody's again.
void drop_arena(int arena, Device device);

}  // namespace lamina::detail
