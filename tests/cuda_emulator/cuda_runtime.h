#pragma once
// Stands in for NVIDIA's header of this name when kernels are compiled for the CPU: the qualifiers, the built-in variables and functions of device
// code, and the part of the runtime API that lamina uses. Everything happens at once: streams have no delay, so what is asynchronous on a GPU has
// ended on return.

#define CUDA_EMULATOR 1

#include <bit>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <source_location>
#include <type_traits>

#include "cuda_emulator/executor.h"
#include "cuda_emulator/pointer.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static  // the type is shared_array<T, n>, which starts anew in every block

using dim3 = cuda_emulator::Dim;
inline const dim3 &threadIdx = cuda_emulator::thread_index, &blockIdx = cuda_emulator::block_index, &blockDim = cuda_emulator::block_size,
                  &gridDim = cuda_emulator::grid_size;

// Device functions.

#define CUDA_EMULATOR_HERE std::source_location where = std::source_location::current()

inline void __syncthreads(CUDA_EMULATOR_HERE) { cuda_emulator::barrier(cuda_emulator::Vote::none, 0, where); }
inline int __syncthreads_or(int value, CUDA_EMULATOR_HERE) { return cuda_emulator::barrier(cuda_emulator::Vote::any, value, where); }
inline int __syncthreads_and(int value, CUDA_EMULATOR_HERE) { return cuda_emulator::barrier(cuda_emulator::Vote::all, value, where); }
inline int __syncthreads_count(int value, CUDA_EMULATOR_HERE) { return cuda_emulator::barrier(cuda_emulator::Vote::count, value, where); }

namespace cuda_emulator {
template <class T>
T shuffle(WarpKind kind, const char* name, unsigned mask, T value, int argument, int width, std::source_location where) {
  static_assert(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  const WarpCall call{kind, name, mask, std::bit_cast<Bits>(value), argument, width, where};
  return std::bit_cast<T>(static_cast<Bits>(warp_operation(call)));
}
inline uint64_t vote(WarpKind kind, const char* name, unsigned mask, int value, std::source_location where) {
  return warp_operation({kind, name, mask, static_cast<uint64_t>(value != 0), 0, lanes, where});
}
}  // namespace cuda_emulator

template <class T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32, CUDA_EMULATOR_HERE) {
  return cuda_emulator::shuffle(cuda_emulator::WarpKind::index, "__shfl_sync", mask, value, lane, width, where);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, CUDA_EMULATOR_HERE) {
  return cuda_emulator::shuffle(cuda_emulator::WarpKind::up, "__shfl_up_sync", mask, value, static_cast<int>(delta), width, where);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, CUDA_EMULATOR_HERE) {
  return cuda_emulator::shuffle(cuda_emulator::WarpKind::down, "__shfl_down_sync", mask, value, static_cast<int>(delta), width, where);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, CUDA_EMULATOR_HERE) {
  return cuda_emulator::shuffle(cuda_emulator::WarpKind::exclusive_or, "__shfl_xor_sync", mask, value, lanes, width, where);
}
inline void __syncwarp(unsigned mask = 0xFFFFFFFF, CUDA_EMULATOR_HERE) {
  cuda_emulator::warp_operation({cuda_emulator::WarpKind::sync, "__syncwarp", mask, 0, 0, cuda_emulator::lanes, where});
}
inline unsigned __ballot_sync(unsigned mask, int value, CUDA_EMULATOR_HERE) {
  return static_cast<unsigned>(cuda_emulator::vote(cuda_emulator::WarpKind::ballot, "__ballot_sync", mask, value, where));
}
inline int __any_sync(unsigned mask, int value, CUDA_EMULATOR_HERE) {
  return static_cast<int>(cuda_emulator::vote(cuda_emulator::WarpKind::any, "__any_sync", mask, value, where));
}
inline int __all_sync(unsigned mask, int value, CUDA_EMULATOR_HERE) {
  return static_cast<int>(cuda_emulator::vote(cuda_emulator::WarpKind::all, "__all_sync", mask, value, where));
}

// Atomics on dptr<T>; each returns the old value.
template <class T>
T atomicAdd(cuda_emulator::Pointer<T> at, std::type_identity_t<T> value) {
  return at.atomic([&](T old) { return static_cast<T>(old + value); });
}
template <class T>
T atomicMax(cuda_emulator::Pointer<T> at, std::type_identity_t<T> value) {
  return at.atomic([&](T old) { return old > value ? old : value; });
}
template <class T>
T atomicMin(cuda_emulator::Pointer<T> at, std::type_identity_t<T> value) {
  return at.atomic([&](T old) { return old < value ? old : value; });
}
template <class T>
T atomicAnd(cuda_emulator::Pointer<T> at, std::type_identity_t<T> value) {
  return at.atomic([&](T old) { return static_cast<T>(old & value); });
}
template <class T>
T atomicOr(cuda_emulator::Pointer<T> at, std::type_identity_t<T> value) {
  return at.atomic([&](T old) { return static_cast<T>(old | value); });
}
template <class T>
T atomicExch(cuda_emulator::Pointer<T> at, std::type_identity_t<T> value) {
  return at.atomic([&](T) { return value; });
}
template <class T>
T atomicCAS(cuda_emulator::Pointer<T> at, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  return at.atomic([&](T old) { return old == expected ? value : old; });
}

// The runtime API; numbers and texts as NVIDIA's.

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101
};
const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();

enum cudaMemcpyKind { cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaMemcpyDefault };
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount = 16, cudaDevAttrMaxSharedMemoryPerBlockOptin = 97 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
constexpr unsigned cudaStreamNonBlocking = 1;
using cudaStream_t = struct CUstream_st*;

cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaMemGetInfo(size_t* free, size_t* total);
cudaError_t cudaMalloc(void** pointer, size_t bytes);
cudaError_t cudaFree(void* pointer);
cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t stream);
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream);
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemset(void* to, int value, size_t bytes);
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value);

namespace cuda_emulator {

/// kernel<<<grid, block, shared_bytes, stream>>>(...), where body() calls the kernel once: checks the limits, as a GPU does, and runs all threads.
cudaError_t launch(const char* name, const void* kernel, dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& body);

/// What cudaGetDeviceCount gives from now on, for tests of machines without a GPU or with an old driver.
void set_device_count(int count, cudaError_t error = cudaSuccess);

}  // namespace cuda_emulator
