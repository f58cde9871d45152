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
size_t device_bytes_in_use();

/// The address of new memory, 256-byte aligned; null when the device has not so much left.
void* allocate(size_t bytes);
/// Throws when the address is not the begin of living memory.
void deallocate(void* address);
bool is_device_address(const void* address);

/// The living memory around [address, address + bytes); throws when there is none, or it is smaller. `operation` is for the text.
Memory& memory_at(const void* address, size_t bytes, const char* operation);

/// What was allocated and not freed, one line each; "" if there is nothing. At the end of the process it is printed, and the exit status is 1.
std::string leaks();

}  // namespace cuda_emulator
