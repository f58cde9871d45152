// Barriers, warp operations and the order of threads: right results, and planted bugs that must be found.

#include <numeric>

#include "cuda_emulator/test_support.h"

using namespace lamina::test;

namespace {

enum class Misuse { none, half_waits, early_return, two_places };

__global__ void barriers(dptr<int> out, Misuse misuse) {
  const int t = static_cast<int>(threadIdx.x);
  if (misuse == Misuse::early_return && t == 3) return;
  if (misuse == Misuse::two_places) {
    if (t % 2 == 0) {
      __syncthreads();
    } else {
      __syncthreads();
    }
  } else if (misuse != Misuse::half_waits || t < 8) {
    __syncthreads();
  }
  out[t] = t;
}

__global__ void votes(dptr<int> out, int below) {
  const int t = static_cast<int>(threadIdx.x), yes = t < below;
  const int any = __syncthreads_or(yes), all = __syncthreads_and(yes), count = __syncthreads_count(yes);
  const unsigned ballot = __ballot_sync(all_lanes, yes);
  const int warp_any = __any_sync(all_lanes, yes), warp_all = __all_sync(all_lanes, yes);
  if (t % warp_size != 0) return;
  const int results[] = {any, all, count, static_cast<int>(ballot), warp_any, warp_all};
  for (int i = 0; i < 6; ++i) out[t / warp_size * 6 + i] = results[i];
}

__global__ void shuffles(dptr<int> out) {
  const int lane = static_cast<int>(threadIdx.x);
  const int results[] = {__shfl_sync(all_lanes, lane, 35),        __shfl_up_sync(all_lanes, lane, 2),    __shfl_down_sync(all_lanes, lane, 2),
                         __shfl_xor_sync(all_lanes, lane, 5),     __shfl_sync(all_lanes, lane, 1, 8),    __shfl_up_sync(all_lanes, lane, 3, 8),
                         __shfl_down_sync(all_lanes, lane, 3, 8), __shfl_xor_sync(all_lanes, lane, 8, 8)};
  for (int i = 0; i < 8; ++i) out[i * warp_size + lane] = results[i];
}

__global__ void shuffle_doubles(dptr<double> out) {
  double sum = 1.0 / (1 + threadIdx.x);
  for (int distance = warp_size / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(all_lanes, sum, distance);
  out[threadIdx.x] = sum;
}

__global__ void half_warps(dptr<int> out) {
  const int lane = static_cast<int>(threadIdx.x);
  const unsigned mask = lane < 16 ? 0x0000FFFF : 0xFFFF0000;
  int value = lane;
  if (lane < 16)
    value = __shfl_xor_sync(mask, value, 1);
  else
    value = __shfl_xor_sync(mask, value, 2);
  out[lane] = value;
}

// Wrong masks, one kind each.
__global__ void wrong_mask(dptr<int> out, int kind) {
  const int lane = static_cast<int>(threadIdx.x);
  int value = lane;
  if (kind == 0 && lane == 5) return;                                                      // named in the mask of the others
  if (kind == 1) value = __shfl_sync(0x0000FFFF, value, 0);                                // lanes that lack themselves
  if (kind == 2 && lane < 16) value = __shfl_sync(0x0000FFFF, value, 20);                  // reads a lane outside
  if (kind == 3) value = __shfl_sync(lane % 31 == 0 ? 0xFFFFFFFF : 0x7FFFFFFF, value, 0);  // lanes disagree
  if (kind == 4 && lane % 2 == 0) __syncwarp();                                            // half of the warp elsewhere,
  if (kind == 4 && lane % 2 == 1) value = __shfl_sync(all_lanes, value, 0);                // in another operation
  if (kind == 0 || kind == 5) value = __shfl_sync(all_lanes, value, 0);                    // 5: the block has fewer lanes
  if (kind == 6 && lane == 1) __syncthreads();                                             // one waits for the block,
  if (kind == 6 && lane != 1) __syncwarp();                                                // the others for it
  out[lane] = value;
}

__global__ void order_of_threads(dptr<int> next, dptr<int> out) { out[atomicAdd(next, 1)] = static_cast<int>(threadIdx.x); }

__global__ void where_am_i(dptr<int> out) {
  const int64_t thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const int64_t block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const int64_t per_block = blockDim.x * blockDim.y * blockDim.z;
  out[block * per_block + thread] = static_cast<int>(block * 100 + thread);
}

}  // namespace

TEST_CASE("emulator: grids and blocks of three axes") {
  const DeviceArray<int> out(24 * 30);
  start(where_am_i, dim3(2, 3, 4), dim3(5, 3, 2), 0, out.data());
  const auto have = out.host();
  for (size_t i = 0; i < have.size(); ++i) REQUIRE(have[i] == static_cast<int>(i / 30 * 100 + i % 30));
}

TEST_CASE("emulator: divergent barriers") {
  const DeviceArray<int> out(16);
  start(barriers, 1, 16, 0, out.data(), Misuse::none);
  CHECK(out.host()[15] == 15);
  for (const uint64_t seed : {0, 1, 2}) {
    const Seed order(seed);
    const auto text = [&](Misuse misuse) { return error_of([&] { start(barriers, 1, 16, 0, out.data(), misuse); }); };
    CHECK_THAT(text(Misuse::half_waits), contains("[test] block (0, 0, 0), thread (") &&
                                             contains("divergent barrier: this thread waits in __syncthreads at") && contains("threads_test.cpp:") &&
                                             contains("has left the kernel"));
    CHECK_THAT(text(Misuse::early_return), contains("divergent barrier") && contains("thread (3, 0, 0) has left the kernel"));
    CHECK_THAT(text(Misuse::two_places),
               contains("divergent barrier: this thread waits in __syncthreads at") && contains("waits in __syncthreads at"));
  }
  // After all that, launches go on as if nothing had been.
  start(barriers, 1, 16, 0, out.data(), Misuse::none);
}

TEST_CASE("emulator: votes of blocks and warps") {
  const DeviceArray<int> out(12);
  start(votes, 1, 64, 0, out.data(), 40);
  CHECK(out.host() == std::vector<int>{1, 0, 40, -1, 1, 1, 1, 0, 40, 0xFF, 1, 0});
  start(votes, 1, 64, 0, out.data(), 0);
  CHECK(out.host() == std::vector<int>{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
  start(votes, 1, 64, 0, out.data(), 64);
  CHECK(out.host() == std::vector<int>{1, 1, 64, -1, 1, 1, 1, 1, 64, -1, 1, 1});
}

TEST_CASE("emulator: shuffles") {
  const DeviceArray<int> out(8 * 32);
  start(shuffles, 1, 32, 0, out.data());
  const auto have = out.host();
  for (int lane = 0; lane < 32; ++lane) {
    const int segment = lane / 8 * 8;
    const int expected[] = {3,
                            lane >= 2 ? lane - 2 : lane,
                            lane < 30 ? lane + 2 : lane,
                            lane ^ 5,
                            segment + 1,
                            lane - 3 >= segment ? lane - 3 : lane,
                            lane + 3 < segment + 8 ? lane + 3 : lane,
                            (lane ^ 8) < segment + 8 ? lane ^ 8 : lane};
    for (int i = 0; i < 8; ++i) REQUIRE(have[static_cast<size_t>(i * 32 + lane)] == expected[i]);
  }
  const DeviceArray<double> sums(32);
  start(shuffle_doubles, 1, 32, 0, sums.data());
  const auto all = sums.host();
  CHECK(all[0] == Approx(4.05849519543652).epsilon(1e-14));  // 1 + 1/2 + ... + 1/32
  CHECK(all == std::vector<double>(32, all[0]));
  const DeviceArray<int> halves(32);
  start(half_warps, 1, 32, 0, halves.data());
  for (int lane = 0; lane < 32; ++lane) REQUIRE(halves.host()[static_cast<size_t>(lane)] == (lane < 16 ? lane ^ 1 : lane ^ 2));
}

TEST_CASE("emulator: wrong warp masks") {
  const DeviceArray<int> out(32);
  for (const uint64_t seed : {0, 1, 2}) {
    const Seed order(seed);
    const auto text = [&](int kind, unsigned threads = 32) { return error_of([&] { start(wrong_mask, 1, threads, 0, out.data(), kind); }); };
    CHECK_THAT(text(0), contains("wrong warp mask") && contains("__shfl_sync") && contains("thread (5, 0, 0) has left the kernel"));
    CHECK_THAT(text(1), contains("its mask 0x0000ffff lacks this lane"));
    CHECK_THAT(text(2), contains("reads lane 20, which its mask 0x0000ffff lacks"));
    CHECK_THAT(text(3), contains("with mask 0x") && contains("meets __shfl_sync at threads_test.cpp"));
    CHECK_THAT(text(4), contains("meets __"));
    CHECK_THAT(text(5, 20), contains("names lanes that this block of 20 threads lacks"));
    CHECK_THAT(text(6), contains("thread (1, 0, 0) waits in __syncthreads"));
  }
}

TEST_CASE("emulator: the seed gives the order of threads; kernels that never wait are plain calls") {
  const auto order = [](uint64_t seed) {
    const Seed guard(seed);
    const DeviceArray<int> next(std::vector<int>{0}), out(64);
    start(order_of_threads, 1, 64, 0, next.data(), out.data());
    return out.host();
  };
  const int64_t before = cuda_emulator::switch_count();
  std::vector<int> natural(64);
  std::iota(natural.begin(), natural.end(), 0);
  CHECK(order(0) == natural);
  CHECK(order(1) != natural);
  CHECK(order(1) == order(1));
  CHECK(order(1) != order(2));
  CHECK(cuda_emulator::switch_count() == before);
}
