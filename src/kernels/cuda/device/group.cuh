#pragma once
// Threads that work on one row together: a warp, or a whole block. What they add up comes out the same, to the bit, in every thread and every run.

#include "kernels/cuda/launch.h"

namespace lamina::kernels::cuda {

/// A warp. A block holds several, each with its own row.
struct WarpGroup {
  static constexpr int threads = warp_size;
  static constexpr int per_block = 8;
  static constexpr int block_threads = threads * per_block;

  __device__ static int rank() { return static_cast<int>(threadIdx.x) % warp_size; }
  __device__ static int number() { return static_cast<int>(threadIdx.x) / warp_size; }  // of the group in its block

  /// Replaces each value by the sum over the group's threads.
  template <int n>
  __device__ static void sum(double (&values)[n]) {
    for (int i = 0; i < n; ++i)
      for (int distance = warp_size / 2; distance > 0; distance /= 2) values[i] += __shfl_xor_sync(all_lanes, values[i], distance);
  }

  __device__ static double largest(double value) {
    for (int distance = warp_size / 2; distance > 0; distance /= 2) {
      const double other = __shfl_xor_sync(all_lanes, value, distance);
      if (other > value) value = other;
    }
    return value;
  }
};

/// A block of its own.
template <int kThreads>
struct BlockGroup {
  static constexpr int threads = kThreads;
  static constexpr int per_block = 1;
  static constexpr int block_threads = kThreads;
  static constexpr int warps = kThreads / warp_size;

  __device__ static int rank() { return static_cast<int>(threadIdx.x); }
  __device__ static int number() { return 0; }

  template <int n>
  __device__ static void sum(double (&values)[n]) {
    __shared__ shared_array<double, n * warps> parts;
    WarpGroup::sum(values);
    __syncthreads();  // the sums of the last call have been read
    if (WarpGroup::rank() == 0)
      for (int i = 0; i < n; ++i) parts[WarpGroup::number() * n + i] = values[i];
    __syncthreads();
    for (int i = 0; i < n; ++i) {
      values[i] = parts[i];
      for (int warp = 1; warp < warps; ++warp) values[i] += parts[warp * n + i];
    }
  }

  __device__ static double largest(double value) {
    __shared__ shared_array<double, warps> parts;
    value = WarpGroup::largest(value);
    __syncthreads();
    if (WarpGroup::rank() == 0) parts[WarpGroup::number()] = value;
    __syncthreads();
    for (int warp = 0; warp < warps; ++warp) {
      const double other = parts[warp];
      if (other > value) value = other;
    }
    return value;
  }
};

}  // namespace lamina::kernels::cuda
