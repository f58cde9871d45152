#pragma once
// Runs launches: blocks one after the other, the threads of a block as fibers that take turns at barriers and warp operations.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "cuda_emulator/place.h"
#include "cuda_emulator/pointer.h"

namespace cuda_emulator {

struct Dim {
  constexpr Dim(unsigned x_size = 1, unsigned y_size = 1, unsigned z_size = 1) : x(x_size), y(y_size), z(z_size) {}
  unsigned x, y, z;
};
/// threadIdx, blockIdx, blockDim and gridDim of the thread that runs.
inline Dim thread_index, block_index, block_size, grid_size;

struct Limits {
  static constexpr unsigned threads = 1024, block_z = 64, grid_x = 0x7FFFFFFF, grid_yz = 65535;
  static constexpr size_t shared = 48 * 1024, shared_opt_in = 227 * 1024;  // by default, and raised by cudaFuncSetAttribute
};

/// Runs body() for every thread of every block. The caller has checked the limits; `shared_limit` holds for dynamic and static shared memory
/// together. Throws Error when a rule is broken; the launch is given up then.
void run_grid(const std::string& kernel, Dim grid, Dim block, size_t shared_bytes, size_t shared_limit, const std::function<void()>& body);

/// Threads of a block, and blocks, run in an order drawn from this seed; 0 is the order of their numbers. Starts as the environment's
/// CUDA_EMULATOR_SEED.
void set_seed(uint64_t seed);

/// How many times a thread gave way to another since the start: 0 for kernels without barriers and warp operations.
int64_t switch_count();

enum class Vote { none, any, all, count };
/// __syncthreads and its voting kin: what the vote over all threads gives.
int barrier(Vote vote, int value, Place where);

enum class WarpKind { sync, index, up, down, exclusive_or, ballot, any, all };
struct WarpCall {
  WarpKind kind = WarpKind::sync;
  const char* name = "";
  uint32_t mask = 0;
  uint64_t value = 0;
  int argument = 0, width = lanes;
  Place where;
};
/// A warp operation: waits for all lanes of the mask, and returns this lane's result.
uint64_t warp_operation(const WarpCall& call);

}  // namespace cuda_emulator
