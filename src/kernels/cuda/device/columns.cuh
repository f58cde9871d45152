#pragma once
// The columns of [outer, axis, inner] that run down the axis, side by side: column c = (o, i) begins at o * axis * inner + i and goes on in steps of
// inner. A block takes a tile of neighbouring columns; where the axis is long, several threads share a column, each taking every so many-th row.

#include "kernels/cuda/launch.h"

namespace lamina::kernels::cuda {

constexpr int column_threads = 256;

struct ColumnTiles {
  int64_t columns, axis, inner, tiles;
  int width, slices;  // of a tile: columns, and threads that share one

  ColumnTiles(int64_t outer, int64_t axis_size, int64_t inner_size) : columns(outer * inner_size), axis(axis_size), inner(inner_size) {
    const int64_t most = axis >= 32 ? 64 : column_threads;
    if (inner <= most && axis * inner >= 1024) {
      width = static_cast<int>(inner);  // one piece of memory
    } else {
      const int64_t n = (columns + most - 1) / most;
      width = n == 0 ? 1 : static_cast<int>((columns + n - 1) / n);
    }
    tiles = (columns + width - 1) / width;
    slices = column_threads / width;
  }
};

/// How an axis is cut: `parts` of `length`, the last may be shorter.
struct Parts {
  int64_t parts, length;
};

constexpr int64_t enough_blocks = 1024;  // fill a GPU

/// Parts of at least `least` (and of a multiple of `multiple`) such that `units` times as many blocks fill a GPU, if the axis is long enough.
inline Parts parts_of(int64_t units, int64_t axis, int64_t least, int64_t multiple) {
  const int64_t wanted = units > 0 ? (enough_blocks + units - 1) / units : enough_blocks, possible = axis / least;
  const int64_t most = wanted < possible ? wanted : possible > 0 ? possible : 1;
  const int64_t length = ((axis + most - 1) / most + multiple - 1) / multiple * multiple;
  return length > 0 ? Parts{(axis + length - 1) / length, length} : Parts{1, 1};
}

/// Parts of columns: threads take 16 elements or more.
inline Parts parts_of(const ColumnTiles& tiles) { return parts_of(tiles.tiles, tiles.axis, int64_t{16} * tiles.slices, 1); }

/// A thread's part of a tile.
struct ColumnThread {
  __device__ ColumnThread(const ColumnTiles& tiles, int64_t tile) : slice(static_cast<int>(threadIdx.x) / tiles.width) {
    column = tile * tiles.width + static_cast<int>(threadIdx.x) % tiles.width;
    inside = slice < tiles.slices && column < tiles.columns;
    outer = column / tiles.inner;
    from = outer * tiles.axis * tiles.inner + column % tiles.inner;
  }
  int slice;
  bool inside;
  int64_t column, outer, from;  // from: the column's first element
};

/// Combines the values of the threads that share a column, in a fixed order; all of them get the result. Called by the whole block.
template <class Value, class F>
__device__ Value combine_slices(const ColumnTiles& tiles, const Value& mine, F combine) {
  if (tiles.slices == 1) return mine;
  __shared__ shared_array<Value, column_threads> values;
  const int at = static_cast<int>(threadIdx.x), slice = at / tiles.width;
  __syncthreads();  // the results of the last call have been read
  values[at] = mine;
  __syncthreads();
  for (int left = tiles.slices; left > 1;) {
    const int half = (left + 1) / 2;
    if (slice < left / 2) {
      const Value a = values[at], b = values[at + half * tiles.width];
      values[at] = combine(a, b);
    }
    __syncthreads();
    left = half;
  }
  return values[at % tiles.width];
}

}  // namespace lamina::kernels::cuda
