#include "kernels/move.h"

#include <algorithm>
#include <cstring>

#include <lamina/core/parallel.h>
#include "kernels/cpu/broadcast.h"
#include "kernels/element.h"
#include "kernels/kernels.h"

namespace lamina::kernels {
namespace {

constexpr int64_t kGrain = 65536;             // elements,
constexpr int64_t kGrainBytes = 1024 * 1024;  // or bytes, below which a range is not worth a thread

/// Calls f with an unsigned integer of that size.
template <class F>
void with_size(size_t element_size, F&& f) {
  if (element_size == 1) return f(uint8_t{});
  if (element_size == 4) return f(uint32_t{});
  f(uint64_t{});
}

void copy_bytes(int64_t bytes, const void* source, void* target) {
  if (bytes > 0) std::memcpy(target, source, static_cast<size_t>(bytes));
}

/// target[rows, columns] from the columns-major source: tiles that fit the first-level cache in both directions.
template <class E>
void transpose(int64_t rows, int64_t columns, const E* source, int64_t column_stride, E* target, int64_t target_pitch) {
  constexpr int64_t kTile = 16;
  for (int64_t top = 0; top < rows; top += kTile) {
    const int64_t bottom = std::min(rows, top + kTile);
    for (int64_t left = 0; left < columns; left += kTile) {
      const int64_t right = std::min(columns, left + kTile);
      for (int64_t r = top; r < bottom; ++r) {
        for (int64_t c = left; c < right; ++c) target[r * target_pitch + c] = source[c * column_stride + r];
      }
    }
  }
}

template <class E>
void strided(const Broadcast& space, const E* source, E* target) {
  const size_t rank = static_cast<size_t>(space.rank);
  const auto& sizes = space.sizes;
  const auto& strides = space.strides[0];
  // The last axis jumps and the one before it is contiguous: a batch of transpositions, shared out by blocks of rows.
  if (rank >= 2 && strides[rank - 2] == 1 && strides[rank - 1] > 1) {
    const int64_t rows = sizes[rank - 2], columns = sizes[rank - 1], block = 64, blocks = (rows + block - 1) / block;
    Broadcast batch = space;  // one element per matrix
    batch.sizes[rank - 2] = batch.sizes[rank - 1] = 1;
    const int64_t matrices = space.numel / (rows * columns);
    parallel_for(matrices * blocks, std::max<int64_t>(1, kGrain / (block * columns)), [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t matrix = task / blocks, top = task % blocks * block;
        const int64_t offset = cpu::RowCursor(batch, matrix).offsets()[0];
        transpose(std::min(block, rows - top), columns, source + offset + top, strides[rank - 1], target + (matrix * rows + top) * columns, columns);
      }
    });
    return;
  }
  const int64_t stride = cpu::inner_axis(space).strides[0];
  cpu::for_each_run(space, kGrain, [&](int64_t first, int64_t count, const std::array<int64_t, 3>& offsets) {
    const E* from = source + offsets[0];
    if (stride == 1) {
      copy_bytes(count * static_cast<int64_t>(sizeof(E)), from, target + first);
    } else if (stride == 0) {
      std::fill_n(target + first, count, *from);
    } else {
      for (int64_t i = 0; i < count; ++i) target[first + i] = from[i * stride];
    }
  });
}

struct CpuMove final : MoveKernels {
  void copy(int64_t bytes, const void* source, void* target) const override {
    parallel_for(bytes, kGrainBytes, [&](int64_t begin, int64_t end) {
      copy_bytes(end - begin, static_cast<const char*>(source) + begin, static_cast<char*>(target) + begin);
    });
  }

  void fill(DType dtype, int64_t n, double value, void* target) const override {
    with_element(dtype, [&](auto element) {
      using E = decltype(element);
      E* out = static_cast<E*>(target);
      parallel_for(n, kGrain, [&](int64_t begin, int64_t end) { std::fill(out + begin, out + end, convert<E>(value)); });
    });
  }

  void cast(DType from, DType to, int64_t n, const void* source, void* target) const override {
    with_element(from, [&](auto from_element) {
      with_element(to, [&](auto to_element) {
        using From = decltype(from_element);
        using To = decltype(to_element);
        const From* in = static_cast<const From*>(source);
        To* out = static_cast<To*>(target);
        parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) out[i] = convert<To>(in[i]);
        });
      });
    });
  }

  void iota(DType dtype, int64_t n, double start, double step, void* target) const override {
    with_element(dtype, [&](auto element) {
      using E = decltype(element);
      E* out = static_cast<E*>(target);
      parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) out[i] = convert<E>(start + static_cast<double>(i) * step);
      });
    });
  }

  void strided_copy(size_t element_size, const Broadcast& space, const void* source, void* target) const override {
    if (space.numel == 0) return;
    with_size(element_size, [&](auto element) {
      using E = decltype(element);
      strided(space, static_cast<const E*>(source), static_cast<E*>(target));
    });
  }

  void copy_2d(int64_t rows, int64_t width_bytes, const void* source, int64_t source_pitch, void* target, int64_t target_pitch) const override {
    parallel_for(rows, std::max<int64_t>(1, kGrainBytes / std::max<int64_t>(1, width_bytes)), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        copy_bytes(width_bytes, static_cast<const char*>(source) + r * source_pitch, static_cast<char*>(target) + r * target_pitch);
      }
    });
  }

  void gather_rows(int64_t count, int64_t /*rows*/, int64_t row_bytes, const void* source, const int64_t* index, void* target) const override {
    parallel_for(count, std::max<int64_t>(1, kGrainBytes / 4 / std::max<int64_t>(1, row_bytes)), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        copy_bytes(row_bytes, static_cast<const char*>(source) + index[i] * row_bytes, static_cast<char*>(target) + i * row_bytes);
      }
    });
  }
};

}  // namespace

const MoveKernels& CpuBackend::move() {
  static const CpuMove kernels;
  return kernels;
}

}  // namespace lamina::kernels
