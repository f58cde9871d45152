#pragma once
// What device code may call: built-in variables, barriers, warp operations, atomics on dptr<T>, intrinsics. Part of cuda_runtime.h.

#include <bit>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cuda_emulator/executor.h"
#include "cuda_emulator/pointer.h"

using dim3 = cuda_emulator::Dim;
inline const dim3 &threadIdx = cuda_emulator::thread_index, &blockIdx = cuda_emulator::block_index, &blockDim = cuda_emulator::block_size,
                  &gridDim = cuda_emulator::grid_size;

#define CUDA_EMULATOR_HERE cuda_emulator::Place where = cuda_emulator::Place::current()

inline void __syncthreads(CUDA_EMULATOR_HERE) { cuda_emulator::barrier(cuda_emulator::Vote::none, 0, where); }
inline int __syncthreads_or(int value, CUDA_EMULATOR_HERE) { return cuda_emulator::barrier(cuda_emulator::Vote::any, value, where); }
inline int __syncthreads_and(int value, CUDA_EMULATOR_HERE) { return cuda_emulator::barrier(cuda_emulator::Vote::all, value, where); }
inline int __syncthreads_count(int value, CUDA_EMULATOR_HERE) { return cuda_emulator::barrier(cuda_emulator::Vote::count, value, where); }

namespace cuda_emulator {
template <class T>
T shuffle(WarpKind kind, const char* name, unsigned mask, T value, int argument, int width, Place where) {
  static_assert(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  const WarpCall call{kind, name, mask, std::bit_cast<Bits>(value), argument, width, where};
  return std::bit_cast<T>(static_cast<Bits>(warp_operation(call)));
}
inline uint64_t vote(WarpKind kind, const char* name, unsigned mask, int value, Place where) {
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

// Intrinsics. Those whose names end in rn round as the CPU's operators do; the compiler must not fuse them, which is up to -ffp-contract.

template <class T>
std::remove_const_t<T> __ldg(cuda_emulator::Pointer<T> at) {
  return at.load();
}
template <std::floating_point T>
T rsqrt(T x) {
  return T{1} / std::sqrt(x);
}
inline float rsqrtf(float x) { return 1.0F / std::sqrt(x); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __frcp_rn(float a) { return 1.0F / a; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __dsqrt_rn(double a) { return std::sqrt(a); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return std::countl_zero(static_cast<unsigned long long>(x)); }
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }
inline int __ffsll(long long x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned long long>(x)) + 1; }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>((uint64_t{a} * b) >> 32); }
inline int __mulhi(int a, int b) { return static_cast<int>((int64_t{a} * b) >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  const uint64_t a_low = a & 0xFFFFFFFF, a_high = a >> 32, b_low = b & 0xFFFFFFFF, b_high = b >> 32;
  const uint64_t middle = a_high * b_low + (a_low * b_low >> 32), other = a_low * b_high + (middle & 0xFFFFFFFF);
  return a_high * b_high + (middle >> 32) + (other >> 32);
}
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return std::bit_cast<double>(x); }
