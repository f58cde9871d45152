#pragma once
// The order in which a recurrent layer walks its sequences.

#include <lamina/core/tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/recurrent.h"

namespace lamina::ops {

/// Numbers of rows, for gather_rows.
class RowList {
 public:
  /// In the memory of a device, where they are copied to when it first asks.
  const int64_t* on(Device device) const;
  int64_t size() const { return static_cast<int64_t>(list.size()); }

  std::vector<int64_t> list;  // not to be changed after on()

 private:
  mutable Tensor copy_;
};

/// The rows that a step has in all arrays over time, and how they correspond to those of x [T, N, ...].
struct RecurrentPlan {
  RecurrentPlan(int64_t time, int64_t batch, std::span<const int64_t> lengths, bool reverse);

  int64_t time, batch;
  bool ragged;  // some sequence is shorter than `time`; else rows stand as in x, and the lists below are empty
  std::vector<int64_t> offset, alive;
  int64_t rows = 0;
  RowList order, rank;    // [batch]: the sequence in each place when sorted by length, and the place of each sequence
  RowList source, place;  // [rows]: the row of x [T N, .] behind each; [T N]: its inverse, `rows` where there is padding
  RowList before;         // [rows]: the row of the step before; at step 0, 0

  /// Runs of steps with about `least` rows.
  struct Chunk {
    int64_t first, last;   // steps
    int64_t begin, count;  // their rows
  };
  std::vector<Chunk> chunks(int64_t least) const;

  int64_t steps() const { return static_cast<int64_t>(alive.size()); }
  kernels::Steps walk(const Chunk& chunk) const { return {offset.data(), alive.data(), chunk.first, chunk.last, batch}; }
};

}  // namespace lamina::ops
