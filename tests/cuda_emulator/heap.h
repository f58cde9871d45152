#pragma once
// Device memory: its addresses lie in a range that the host may not touch, and none is used again soon after it was freed.

#include <cstddef>
#include <cstdint>
#include <string>

#include "cuda_emulator/memory.h"

namespace cuda_emulator {

/// What emulated GPUs have; cudaMalloc beyond it fails with cudaErrorMemoryAllocation. set_device_bytes is for tests.
size_t device_bytes();
void set_device_bytes(size_t bytes);
size_t device_bytes_in_use();  // of the current device
size_t device_bytes_in_use(int device);

/// The address of new memory of the current device, 256-byte aligned; null when the device has not so much left.
void* allocate(size_t bytes);
/// Throws when the address is not the begin of living memory.
void deallocate(void* address);
bool is_device_address(const void* address);

/// Host memory that copies may use at any time, as cudaHostAlloc gives it.
void* allocate_pinned(size_t bytes);
void deallocate_pinned(void* address);
bool is_pinned(const void* address, size_t bytes);

/// The memory, dead or alive, that the address points into or just past; null if there is none.
Memory* memory_around(const void* address);
/// The living memory around [address, address + bytes); throws when there is none, or it is smaller. `operation` is for the text.
Memory& memory_at(const void* address, size_t bytes, const char* operation);

/// What was allocated and not freed, one line each; "" if there is nothing. At the end of the process it is printed, and the exit status is 1; one
/// pinned buffer of each device is not counted then: lamina's for copies stays to the end.
std::string leaks();

}  // namespace cuda_emulator
