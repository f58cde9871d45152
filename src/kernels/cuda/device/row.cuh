#pragma once
// How the threads of a group hold one row of a matrix: in registers, or, when it is too long for them, in shared memory or not at all.

#include <type_traits>

#include "kernels/cuda/device/group.cuh"

namespace lamina::kernels::cuda {

/// kVec consecutive elements: one, or the 16 bytes of a Pack.
template <class T, int kVec>
__device__ inline void load(std::type_identity_t<dptr<const T>> p, T (&values)[kVec]) {
  static_assert(kVec == 1 || kVec == Pack<T>::size);
  if constexpr (kVec == 1) {
    values[0] = p[0];
  } else {
    const Pack<T> pack = load_pack<T>(p);
    for (int k = 0; k < kVec; ++k) values[k] = pack.at[k];
  }
}

template <class T, int kVec>
__device__ inline void store(std::type_identity_t<dptr<T>> p, const T (&values)[kVec]) {
  if constexpr (kVec == 1) {
    p[0] = values[0];
  } else {
    Pack<T> pack;
    for (int k = 0; k < kVec; ++k) pack.at[k] = values[k];
    store_pack<T>(p, pack);
  }
}

/// In registers. Thread r has the packs r, r + threads, ... of kVec columns each; they are its items 0, kVec, ...
template <class T, class kGroup, int kVec, int kItems>
struct HeldRow {
  using Value = T;
  using Group = kGroup;
  static constexpr int vec = kVec, items = kItems;
  static constexpr bool held = true;
  static constexpr int64_t longest = int64_t{Group::threads} * kItems;

  /// f(item, first column) for every pack of this thread that begins before `width`.
  template <class F>
  __device__ static void each(int64_t width, F f) {
#pragma unroll
    for (int item = 0; item < kItems; item += kVec) {
      const int64_t column = (int64_t{item / kVec} * Group::threads + Group::rank()) * kVec;
      if (column < width) f(item, column);
    }
  }
  __device__ void fill(int64_t width, dptr<const T> from, dptr<T> /*cache*/) {
    each(width, [&](int item, int64_t column) {
      T pack[kVec];
      load(from + column, pack);
      for (int k = 0; k < kVec; ++k) values[item + k] = pack[k];
    });
  }
  __device__ void get(int item, int64_t /*column*/, T (&pack)[kVec]) const {
    for (int k = 0; k < kVec; ++k) pack[k] = values[item + k];
  }

  T values[kItems] = {};
};

/// Any length: in shared memory if there is a cache, else read again whenever it is wanted.
template <class T, int kVec>
struct LongRow {
  using Value = T;
  using Group = BlockGroup<512>;
  static constexpr int vec = kVec, items = kVec;
  static constexpr bool held = false;

  template <class F>
  __device__ static void each(int64_t width, F f) {
    for (int64_t column = int64_t{Group::rank()} * kVec; column < width; column += int64_t{Group::threads} * kVec) f(0, column);
  }
  // A thread reads from the cache only what it wrote there, so this needs no barrier.
  __device__ void fill(int64_t width, dptr<const T> from, dptr<T> cache) {
    source = from;
    if (cache == nullptr) return;
    each(width, [&](int, int64_t column) {
      T pack[kVec];
      load(from + column, pack);
      store<T, kVec>(cache + column, pack);
    });
    source = cache;
  }
  __device__ void get(int /*item*/, int64_t column, T (&pack)[kVec]) const { load(source + column, pack); }

  dptr<const T> source = nullptr;
};

}  // namespace lamina::kernels::cuda
