#pragma once
// Broadcast spaces for tests of CUDA kernels.

#include <string>
#include <vector>

#include "kernels/elementwise.h"

namespace lamina::test {

inline kernels::Broadcast space_of(const std::vector<int64_t>& sizes, const std::vector<std::vector<int64_t>>& strides) {
  kernels::Broadcast space;
  space.rank = static_cast<int>(sizes.size());
  for (size_t axis = 0; axis < sizes.size(); ++axis) {
    space.sizes[axis] = sizes[axis];
    space.numel *= sizes[axis];
    for (size_t k = 0; k < strides.size(); ++k) space.strides[k][axis] = strides[k][axis];
  }
  return space;
}

/// Elements that operand k must have.
inline int64_t extent(const kernels::Broadcast& space, size_t k) {
  int64_t last = 0;
  for (size_t axis = 0; axis < static_cast<size_t>(space.rank); ++axis) last += (space.sizes[axis] - 1) * space.strides[k][axis];
  return space.numel > 0 ? last + 1 : 0;
}

inline std::string in_words(const kernels::Broadcast& space) {
  std::string text;
  for (size_t axis = 0; axis < static_cast<size_t>(space.rank); ++axis) {
    text += (axis ? ", " : "[") + std::to_string(space.sizes[axis]) + ":";
    for (const auto& strides : space.strides) text += " " + std::to_string(strides[axis]);
  }
  return text + "]";
}

/// All layouts that matter, of three operands: dense, standing still, along some axes only, transposed; axes that do and do not fill chunks.
inline std::vector<kernels::Broadcast> all_spaces() {
  return {space_of({}, {{}, {}, {}}),
          space_of({0}, {{1}, {1}, {1}}),
          space_of({1}, {{1}, {0}, {1}}),
          space_of({7}, {{1}, {1}, {1}}),
          space_of({4096 + 13}, {{1}, {1}, {1}}),
          space_of({1030}, {{0}, {1}, {1}}),
          space_of({1030}, {{1}, {0}, {0}}),
          space_of({33}, {{0}, {0}, {0}}),
          space_of({33}, {{2}, {3}, {1}}),
          space_of({37, 16}, {{16, 1}, {0, 1}, {1, 0}}),
          space_of({37, 16}, {{1, 0}, {16, 1}, {0, 1}}),
          space_of({37, 15}, {{15, 1}, {0, 1}, {1, 0}}),
          space_of({19, 48}, {{1, 0}, {0, 1}, {48, 1}}),
          space_of({16, 32}, {{1, 16}, {32, 1}, {1, 16}}),
          space_of({5, 16}, {{17, 1}, {16, 1}, {16, 1}}),  // pitches that spoil the alignment of chunks
          space_of({3, 5, 16}, {{80, 16, 1}, {0, 16, 1}, {16, 0, 1}}),
          space_of({2, 3, 4, 5}, {{12, 4, 1, 0}, {60, 20, 5, 1}, {0, 5, 0, 1}}),
          space_of({2, 3, 2, 3, 2, 16}, {{96, 0, 48, 0, 0, 1}, {0, 96, 0, 32, 16, 1}, {576, 192, 96, 32, 16, 1}}),
          space_of({3, 0, 2}, {{0, 2, 1}, {0, 2, 1}, {0, 2, 1}})};
}

}  // namespace lamina::test
