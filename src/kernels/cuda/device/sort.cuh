#pragma once
// A stable radix sort of positions by a small key: what sums without float atomics need to find their terms, in order. Each pass of up to 8 bits has
// three launches: how often every digit occurs in each tile, where the tile's first one of each digit goes, and the move itself. Counts are integers,
// and a warp numbers equal digits by votes, so the result is the same in every run.

#include "kernels/cuda/launch.h"

namespace lamina::kernels::cuda {

constexpr int sort_warps = 8, sort_threads = sort_warps * warp_size;
constexpr int sort_rounds = 8;  // keys of a thread: a warp takes sort_rounds times warp_size neighbours
constexpr int sort_tile = sort_threads * sort_rounds;
constexpr int most_digit_bits = 8, most_digits = 1 << most_digit_bits;

/// One pass: the bits of a key that it sorts by.
struct SortPass {
  __device__ unsigned digit(int64_t key) const {
    return static_cast<unsigned>(static_cast<uint64_t>(key) >> shift) & static_cast<unsigned>(digits - 1);
  }

  int64_t n, tiles;
  int shift, bits, digits;
};

/// Keys and positions of an earlier pass. Where keys come from in the first one, the caller says: anything with key(p, report) and position(p).
struct SortedPairs {
  __device__ int64_t key(int64_t p, bool /*report*/) const { return keys[p]; }
  __device__ int64_t position(int64_t p) const { return positions[p]; }
  dptr<const int64_t> keys, positions;
};

/// The number of this thread's key of a round.
__device__ inline int64_t sort_place(int round) {
  const int64_t warp = threadIdx.x / warp_size, lane = threadIdx.x % warp_size;
  return int64_t{blockIdx.x} * sort_tile + (warp * sort_rounds + round) * warp_size + lane;
}

/// The lanes of the warp that have a key and the same digit.
__device__ inline unsigned same_digit(unsigned digit, int bits, bool present) {
  unsigned same = __ballot_sync(all_lanes, present);
  for (int bit = 0; bit < bits; ++bit) {
    const bool one = (digit >> bit & 1U) != 0;
    const unsigned ones = __ballot_sync(all_lanes, one);
    same &= one ? ones : ~ones;
  }
  return same;
}

/// Sums over the threads before this one, of a block of sort_threads.
__device__ inline int64_t sum_before(int64_t value) {
  __shared__ shared_array<int64_t, sort_warps> totals;
  const unsigned lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size;
  int64_t sum = value;
  for (unsigned distance = 1; distance < warp_size; distance *= 2) {
    const int64_t other = __shfl_up_sync(all_lanes, sum, distance);
    if (lane >= distance) sum += other;
  }
  __syncthreads();
  if (lane == warp_size - 1) totals[warp] = sum;
  __syncthreads();
  sum -= value;
  for (unsigned i = 0; i < warp; ++i) sum += totals[i];
  return sum;
}

/// Counts the digits of each warp's keys in counts [sort_warps][digits], which it clears first; ends with a barrier. The keys stay in keys[], and the
/// lanes that share a digit in same[], 0 where there is no key.
template <class Keys>
__device__ void count_digits(const SortPass& pass, const Keys& source, bool report, dptr<int64_t> counts, int64_t (&keys)[sort_rounds],
                             unsigned (&same)[sort_rounds]) {
  for (int i = static_cast<int>(threadIdx.x); i < sort_warps * pass.digits; i += sort_threads) counts[i] = 0;
  __syncthreads();
  const int own = static_cast<int>(threadIdx.x / warp_size) * pass.digits;
  const unsigned lane = threadIdx.x % warp_size;
#pragma unroll
  for (int round = 0; round < sort_rounds; ++round) {
    const int64_t place = sort_place(round);
    const bool present = place < pass.n;
    keys[round] = present ? source.key(place, report) : 0;
  }
#pragma unroll
  for (int round = 0; round < sort_rounds; ++round) {
    const bool present = sort_place(round) < pass.n;
    const unsigned digit = pass.digit(keys[round]), all = same_digit(digit, pass.bits, present);
    same[round] = present ? all : 0;
    if (present && (all & ((1U << lane) - 1)) == 0) counts[own + digit] += __popc(all);  // the first of them
    __syncwarp();
  }
  __syncthreads();
}

/// in_tiles [digits][tiles].
template <class Keys>
__global__ void __launch_bounds__(sort_threads) sort_count(SortPass pass, Keys source, dptr<int64_t> in_tiles) {
  const dptr<int64_t> counts = shared<int64_t>(sort_warps * pass.digits);
  int64_t keys[sort_rounds];
  unsigned same[sort_rounds];
  count_digits(pass, source, true, counts, keys, same);
  for (int digit = static_cast<int>(threadIdx.x); digit < pass.digits; digit += sort_threads) {
    int64_t sum = 0;
    for (int warp = 0; warp < sort_warps; ++warp) sum += counts[warp * pass.digits + digit];
    in_tiles[digit * pass.tiles + blockIdx.x] = sum;
  }
}

/// Replaces the counts of each digit by the sums over the tiles before, and gives their totals [digits]. A warp for each digit.
static __global__ void __launch_bounds__(sort_threads) sort_add_up(SortPass pass, dptr<int64_t> in_tiles, dptr<int64_t> totals) {
  const int64_t digit = int64_t{blockIdx.x} * sort_warps + threadIdx.x / warp_size;
  const unsigned lane = threadIdx.x % warp_size;
  if (digit >= pass.digits) return;
  const dptr<int64_t> row = in_tiles + digit * pass.tiles;
  int64_t before = 0;
  for (int64_t first = 0; first < pass.tiles; first += warp_size) {
    const int64_t count = first + lane < pass.tiles ? int64_t(row[first + lane]) : 0;
    int64_t sum = count;
    for (unsigned distance = 1; distance < warp_size; distance *= 2) {
      const int64_t other = __shfl_up_sync(all_lanes, sum, distance);
      if (lane >= distance) sum += other;
    }
    if (first + lane < pass.tiles) row[first + lane] = before + sum - count;
    before += __shfl_sync(all_lanes, sum, warp_size - 1);
  }
  if (lane == 0) totals[digit] = before;
}

template <class Keys>
__global__ void __launch_bounds__(sort_threads) sort_move(SortPass pass, Keys source, dptr<const int64_t> in_tiles, dptr<const int64_t> totals,
                                                          dptr<int64_t> keys_out, dptr<int64_t> positions_out) {
  const dptr<int64_t> next = shared<int64_t>(sort_warps * pass.digits);  // where each warp's next key of a digit goes
  int64_t keys[sort_rounds];
  unsigned same[sort_rounds];
  count_digits(pass, source, false, next, keys, same);
  const int thread = static_cast<int>(threadIdx.x);
  static_assert(sort_threads >= most_digits);
  int64_t at = sum_before(thread < pass.digits ? int64_t(totals[thread]) : 0);
  if (thread < pass.digits) {
    at += in_tiles[thread * pass.tiles + blockIdx.x];
    for (int warp = 0; warp < sort_warps; ++warp) {
      const int64_t count = next[warp * pass.digits + thread];
      next[warp * pass.digits + thread] = at;
      at += count;
    }
  }
  __syncthreads();
  const int own = thread / warp_size * pass.digits;
  const unsigned before = (1U << (threadIdx.x % warp_size)) - 1;
#pragma unroll
  for (int round = 0; round < sort_rounds; ++round) {
    const unsigned digit = pass.digit(keys[round]);
    const bool present = same[round] != 0;
    const int64_t first = present ? int64_t(next[own + digit]) : 0;
    __syncwarp();
    if (present && (same[round] & before) == 0) next[own + digit] = first + __popc(same[round]);
    __syncwarp();
    if (!present) continue;
    const int64_t to = first + __popc(same[round] & before);
    keys_out[to] = keys[round];
    positions_out[to] = source.position(sort_place(round));
  }
}

/// n positions in the order of their keys, which are below 2^bits; equal keys in rising order of positions. Lives for a scope, as its memory does.
class SortedPositions {
 public:
  template <class Keys>
  SortedPositions(const Op& op, int64_t n, int bits, const Keys& source) : memory_(op, 4 * n) {
    const int passes = bits <= most_digit_bits ? 1 : (bits + most_digit_bits - 1) / most_digit_bits, each = (bits + passes - 1) / passes;
    SortPass pass{n, (n + sort_tile - 1) / sort_tile, 0, each, 1 << each};
    const Scratch<int64_t> in_tiles(op, pass.digits * pass.tiles), totals(op, pass.digits);
    run(op, pass, source, in_tiles.data(), totals.data());
    for (int i = 1; i < passes; ++i) {
      pass.shift += each;
      const SortedPairs last{keys_, positions_};
      run(op, pass, last, in_tiles.data(), totals.data());
    }
  }
  const int64_t* keys() const { return keys_; }
  const int64_t* positions() const { return positions_; }

 private:
  template <class Keys>
  void run(const Op& op, const SortPass& pass, const Keys& source, int64_t* in_tiles, int64_t* totals) {
    int64_t* const keys = keys_ == memory_.data() ? memory_.data() + 2 * pass.n : memory_.data();
    int64_t* const positions = keys + pass.n;
    const size_t bytes = static_cast<size_t>(sort_warps * pass.digits) * sizeof(int64_t);
    const auto tiles = static_cast<unsigned>(pass.tiles);
    launch(op.at("sort_count"), sort_count<Keys>, tiles, sort_threads, bytes, stream(), pass, source, in_tiles);
    launch(op.at("sort_add_up"), sort_add_up, blocks_for(pass.digits, sort_warps, INT32_MAX), sort_threads, 0, stream(), pass, in_tiles, totals);
    launch(op.at("sort_move"), sort_move<Keys>, tiles, sort_threads, bytes, stream(), pass, source, in_tiles, totals, keys, positions);
    keys_ = keys;
    positions_ = positions;
  }

  Scratch<int64_t> memory_;
  const int64_t *keys_ = nullptr, *positions_ = nullptr;
};

}  // namespace lamina::kernels::cuda
