#pragma once
// The allocator under every tensor buffer: see lamina/core/memory.h.

#include <cstddef>
#include <cstdint>

#include <lamina/core/device.h>

namespace lamina::detail {

/// 64-byte aligned memory for at least `bytes` (0 gives null). Throws Error with bytes wanted and held.
void* allocate(int64_t bytes, Device device);
void release(void* pointer, int64_t bytes, Device device);

/// An arena has the buffers that a captured step works in: its graph writes to them whenever it runs, so nobody else may have them while it lives.
/// A capture must not allocate, so they are got before: as many as the work between these two calls, a step of the same kind, had at once.
void start_rehearsal(Device device);
int make_arena(Device device);
/// Until close_arena(), buffers are the arena's or, where it has none left, cached ones, which become its own. Error when there is neither. One arena
/// of a device is open at a time.
void open_arena(int arena, Device device);
void close_arena(Device device);
/// Its buffers are everybody's again.
void drop_arena(int arena, Device device);

}  // namespace lamina::detail
