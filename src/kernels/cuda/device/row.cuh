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

  __device__ void put(int item, const T (&pack)[kVec]) {
    for (int k = 0; k < kVec; ++k) values[item + k] = pack[k];
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

/// Sums over a row's first `width` columns, the same in all threads: f(item, column, terms) adds the terms of a pack. In T over what a thread holds,
/// then in double.
template <class Row, class T, int n, class F>
__device__ void add_items(int64_t width, double (&sums)[n], F f) {
  T parts[n] = {};
  for (int i = 0; i < n; ++i) sums[i] = 0;
  Row::each(width, [&](int item, int64_t column) {
    f(item, column, parts);
    if constexpr (!Row::held) {
      for (int i = 0; i < n; ++i) {
        sums[i] += static_cast<double>(parts[i]);
        parts[i] = 0;
      }
    }
  });
  for (int i = 0; i < n; ++i) sums[i] += static_cast<double>(parts[i]);
  Row::Group::sum(sums);
}

/// The same, value by value: f(value, terms).
template <class T, int n, class Row, class F>
__device__ void add_up(const Row& row, int64_t width, double (&sums)[n], F f) {
  add_items<Row, T>(width, sums, [&](int item, int64_t column, T(&terms)[n]) {
    typename Row::Value values[Row::vec];
    row.get(item, column, values);
    for (int k = 0; k < Row::vec; ++k)
      if (column + k < width) f(values[k], terms);
  });
}

template <class Row>
__device__ int64_t first_row() {
  return int64_t{blockIdx.x} * Row::Group::per_block + Row::Group::number();
}
template <class Row>
__device__ int64_t rows_at_once() {
  return int64_t{gridDim.x} * Row::Group::per_block;
}

// The host's side.

constexpr int64_t most_row_blocks = 8192;  // several rounds on any GPU; groups take further rows in a loop

template <class T>
constexpr int longest_held = 32 * 1024 / static_cast<int>(sizeof(T));

/// f(type_identity<Row>) with the way to hold rows of this width.
template <class T, int kVec, class F>
void with_row(int64_t width, F&& f) {
  constexpr int few = 32 / static_cast<int>(sizeof(T)), many = 128 / static_cast<int>(sizeof(T));
  using Short = HeldRow<T, WarpGroup, kVec, few>;
  using Middle = HeldRow<T, WarpGroup, kVec, many>;
  using Wide = HeldRow<T, BlockGroup<256>, kVec, many>;
  static_assert(Wide::longest == longest_held<T>);
  if (width <= Short::longest) return f(std::type_identity<Short>());
  if (width <= Middle::longest) return f(std::type_identity<Middle>());
  if (width <= Wide::longest) return f(std::type_identity<Wide>());
  f(std::type_identity<LongRow<T, kVec>>());
}
template <class T, class F>
void with_row(int64_t width, bool packs, F&& f) {
  if (packs) return with_row<T, Pack<T>::size>(width, f);
  with_row<T, 1>(width, f);
}

/// Bytes of shared memory for `rows` long rows at a time, 0 if they do not fit: then they are read again. Half of what there is, so that a
/// multiprocessor has two blocks.
template <class T>
size_t cache_bytes(const Op& op, int rows, int64_t width) {
  const auto bytes = static_cast<uint64_t>(rows) * static_cast<uint64_t>(width) * sizeof(T);
  return bytes <= most_shared_bytes(op) / 2 ? bytes : 0;
}

}  // namespace lamina::kernels::cuda
