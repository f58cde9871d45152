#pragma once
// A matrix [rows, width] worked on element by element, where a thread keeps to a few columns and goes down the rows: what belongs to a column (a
// bias, a channel's statistics) is read once.

#include "kernels/cuda/launch.h"

namespace lamina::kernels::cuda {

constexpr int sheet_threads = 256;

struct Sheet {
  /// For `packs` packs of columns; neighbouring threads take neighbouring packs, and where these are few, several rows.
  Sheet(int64_t rows, int64_t packs) {
    unsigned across = 1;
    while (across < sheet_threads && across < packs) across *= 2;
    block = dim3(across, sheet_threads / across);
    const unsigned columns = blocks_for(packs, across, INT32_MAX);
    constexpr int64_t most_blocks = 4096;  // fills any GPU; threads go further down beyond
    const int64_t down = columns < most_blocks ? most_blocks / columns : 1;
    grid = dim3(columns, blocks_for(rows, block.y, down));
  }
  dim3 grid, block;
};

__device__ inline int64_t sheet_pack() { return int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ inline int64_t sheet_row() { return int64_t{blockIdx.y} * blockDim.y + threadIdx.y; }
__device__ inline int64_t sheet_rows_at_once() { return int64_t{gridDim.y} * blockDim.y; }

}  // namespace lamina::kernels::cuda
