// Movers. Copies are in units as wide as their addresses, widths and pitches allow; transpositions go through tiles of shared memory, so that both
// sides of them are read and written in runs.

#include <algorithm>
#include <array>

#include "kernels/cuda/backend.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/device/arithmetic.cuh"
#include "kernels/cuda/device/broadcast.cuh"
#include "kernels/cuda/device/chunk.cuh"
#include "kernels/cuda/device/fault.cuh"
#include "kernels/cuda/device/unit.cuh"
#include "kernels/element.h"

namespace lamina::kernels {

namespace cuda {

namespace {

template <class E>
__global__ void __launch_bounds__(flat_threads) fill_with(Flat flat, dptr<E> target, E value) {
  flat.each<Pack<E>::size>([&](auto width, int64_t at) {
    constexpr int vec = decltype(width)::value;
    Chunk<E, vec> values;
    for (int k = 0; k < vec; ++k) values.at[k] = value;
    store_chunk<E, vec>(target + at, values);
  });
}

template <class E>
__global__ void __launch_bounds__(flat_threads) count_up(Flat flat, dptr<E> target, double start, double step) {
  flat.each<Pack<E>::size>([&](auto width, int64_t at) {
    constexpr int vec = decltype(width)::value;
    Chunk<E, vec> values;
    for (int k = 0; k < vec; ++k) values.at[k] = convert<E>(add_product(start, static_cast<double>(at + k), step));
    store_chunk<E, vec>(target + at, values);
  });
}

constexpr int cast_chunk = 4;

template <class To, class From>
__global__ void __launch_bounds__(flat_threads) cast_to(Flat flat, dptr<const From> source, dptr<To> target) {
  flat.each<cast_chunk>([&](auto width, int64_t at) {
    constexpr int vec = decltype(width)::value;
    const Chunk<From, vec> from = load_chunk<From, vec>(source + at);
    Chunk<To, vec> to;
    for (int k = 0; k < vec; ++k) to.at[k] = convert<To>(from.at[k]);
    store_chunk<To, vec>(target + at, to);
  });
}

constexpr int threads = 256, per_thread = 4;  // units

/// What thread `threadIdx.x` takes of n units, `per_thread` of them: f(number) for each.
template <class F>
__device__ void each_unit(uint32_t n, F f) {
#pragma unroll
  for (uint32_t i = 0; i < per_thread; ++i) {
    const uint32_t unit = (blockIdx.x * per_thread + i) * threads + threadIdx.x;
    if (unit < n) f(unit);
  }
}
unsigned unit_blocks(int64_t n) { return blocks_for(n, threads * per_thread, INT32_MAX); }

template <class Unit>
__global__ void __launch_bounds__(threads) copy_space(Space<1> space, dptr<const Unit> source, dptr<Unit> target) {
  each_unit(space.size, [&](uint32_t unit) {
    uint32_t at[1];
    space.locate(unit, at);
    target[unit] = source[at[0]];
  });
}

/// Rows of `width` units between two pitches.
template <class Unit>
__global__ void __launch_bounds__(threads)
    copy_rows(uint32_t n, Divider width, dptr<const Unit> source, int64_t source_pitch, dptr<Unit> target, int64_t target_pitch) {
  each_unit(n, [&](uint32_t unit) {
    const uint32_t row = width.quotient(unit), column = unit - row * width.divisor;
    target[row * target_pitch + column] = source[row * source_pitch + column];
  });
}

/// target[row] = source[index[row]], `width` units of `pitch`; zeros for an index that is not a row. `first` is the first row's position, for
/// reports.
template <class Unit>
__global__ void __launch_bounds__(threads) pick_rows(uint32_t n, Divider width, int64_t pitch, int64_t rows, dptr<const Unit> source,
                                                     dptr<const int64_t> index, dptr<Unit> target, int64_t first, FaultReport fault) {
  each_unit(n, [&](uint32_t unit) {
    const uint32_t row = width.quotient(unit), column = unit - row * width.divisor;
    const int64_t from = index[row];
    Unit value{};
    if (fault.in_range(first + row, from, rows)) value = source[from * pitch + column];
    target[row * pitch + column] = value;
  });
}

constexpr int tile = 32, tile_rows = 8;

/// A transposition of the last axis of the output (columns; the source jumps by `jump`) and the axis that is dense in the source (rows; the output
/// jumps by `pitch`), for each place that the other axes give: outer.locate finds it in the source and the output.
template <class E>
struct Transposition {
  Space<2> outer;  // one element for each matrix; operand 0 the source, 1 the output
  Divider tiles_down, tiles_across;
  uint32_t rows, columns;
  int64_t jump, pitch;
};

template <class E>
__global__ void __launch_bounds__(tile* tile_rows) transpose(Transposition<E> t, dptr<const E> source, dptr<E> target) {
  constexpr int line = sizeof(E) == 1 ? tile + 4 : tile + 1;  // so that the elements of a column lie in different banks
  __shared__ shared_array<E, tile * line> held;
  const uint32_t above = t.tiles_across.quotient(blockIdx.x), across = blockIdx.x - above * t.tiles_across.divisor;
  const uint32_t matrix = t.tiles_down.quotient(above), down = above - matrix * t.tiles_down.divisor;
  uint32_t at[2];
  t.outer.locate(matrix, at);
  const dptr<const E> from = source + at[0];
  const dptr<E> to = target + at[1];
  const uint32_t x = threadIdx.x, first_row = down * tile, first_column = across * tile;
#pragma unroll
  for (uint32_t y = threadIdx.y; y < tile; y += tile_rows)
    if (first_row + x < t.rows && first_column + y < t.columns) held[y * line + x] = from[(first_column + y) * t.jump + first_row + x];
  __syncthreads();
#pragma unroll
  for (uint32_t y = threadIdx.y; y < tile; y += tile_rows)
    if (first_row + y < t.rows && first_column + x < t.columns) to[(first_row + y) * t.pitch + first_column + x] = E(held[x * line + y]);
}

// The host's side.

/// The axis, other than the last, along which the source is dense, if there is one and both are long enough for tiles; else -1.
int dense_axis(const Broadcast& space) {
  constexpr int64_t shortest = 8;
  const int last = space.rank - 1;
  if (last < 1 || space.strides[0][static_cast<size_t>(last)] <= 1 || space.sizes[static_cast<size_t>(last)] < shortest) return -1;
  for (int axis = last - 1; axis >= 0; --axis)
    if (space.strides[0][static_cast<size_t>(axis)] == 1) return space.sizes[static_cast<size_t>(axis)] >= shortest ? axis : -1;
  return -1;
}

template <class E>
void transposed(const Op& op, const Broadcast& space, size_t dense, const E* source, E* target) {
  const size_t rank = static_cast<size_t>(space.rank), last = rank - 1;
  Broadcast outer;
  std::array<int64_t, 6> pitches{};
  int64_t pitch = 1;
  for (size_t axis = rank; axis-- > 0; pitch *= space.sizes[axis]) pitches[axis] = pitch;
  for (size_t axis = 0; axis < rank; ++axis) {
    if (axis == dense || axis == last) continue;
    const auto i = static_cast<size_t>(outer.rank++);
    outer.sizes[i] = space.sizes[axis];
    outer.strides[0][i] = space.strides[0][axis];
    outer.strides[1][i] = pitches[axis];
    outer.numel *= space.sizes[axis];
  }
  const int64_t rows = space.sizes[dense], columns = space.sizes[last], down = (rows + tile - 1) / tile, across = (columns + tile - 1) / tile;
  const Transposition<E> t{Space<2>(outer, 1),     Divider(down), Divider(across), static_cast<uint32_t>(rows), static_cast<uint32_t>(columns),
                           space.strides[0][last], pitches[dense]};
  launch(op.at("transpose"), transpose<E>, static_cast<unsigned>(outer.numel * down * across), dim3(tile, tile_rows), 0, stream(), t, source, target);
}

template <class E>
void strided(const Broadcast& whole, const E* source, E* target) {
  const Op op("strided_copy", {{"n", whole.numel}, {"axes", whole.rank}});
  in_parts(whole, [&](const Broadcast& space, const std::array<int64_t, 3>& from, int64_t to) {
    const E* const part_source = source + from[0];
    E* const part_target = target + to;
    const int dense = dense_axis(space);
    if (dense >= 0) return transposed(op, space, static_cast<size_t>(dense), part_source, part_target);
    const auto copy = [&]<class Unit>(const Broadcast& units) {
      launch(op, copy_space<Unit>, unit_blocks(units.numel), threads, 0, stream(), Space<1>(units, 1), reinterpret_cast<const Unit*>(part_source),
             reinterpret_cast<Unit*>(part_target));
    };
    const size_t last = space.rank > 0 ? static_cast<size_t>(space.rank - 1) : 0;
    if (space.rank == 0 || space.strides[0][last] != 1) return copy.template operator()<E>(space);
    // Runs: in wide units.
    uint64_t positions = address(part_source) | address(part_target) | static_cast<uint64_t>(space.sizes[last]) * sizeof(E);
    for (size_t axis = 0; axis < last; ++axis) positions |= static_cast<uint64_t>(space.strides[0][axis]) * sizeof(E);
    with_unit(positions, [&]<class Unit>() {
      if constexpr (sizeof(Unit) < sizeof(E)) {
        copy.template operator()<E>(space);
      } else {
        constexpr int64_t ratio = sizeof(Unit) / sizeof(E);
        Broadcast units = space;
        units.sizes[last] /= ratio;
        units.numel /= ratio;
        for (size_t axis = 0; axis < last; ++axis) units.strides[0][axis] /= ratio;
        copy.template operator()<Unit>(units);
      }
    });
  });
}

/// f(first row, rows) for parts of `rows` rows that hold fewer than 2^31 units.
template <class F>
void in_row_parts(int64_t rows, int64_t units, F&& f) {
  const int64_t most = std::max<int64_t>(most_narrow / units, 1);
  for (int64_t row = 0; row < rows; row += most) f(row, std::min(most, rows - row));
}

struct CudaMove final : MoveKernels {
  void copy(int64_t bytes, const void* source, void* target) const override {
    if (bytes <= 0) return;
    const auto size = static_cast<size_t>(bytes);
    const int to = device_of(target), from = device_of(source);
    if (to >= 0 && from < 0) return copy_from_host(target, source, size);
    if (from >= 0 && to < 0) {
      copy_to_host(target, source, size);
      return throw_if_fault();
    }
    const Op op("copy", {{"bytes", bytes}});
    if (from == to) return check(op, cudaMemcpyAsync(target, source, size, cudaMemcpyDefault, stream()), "cudaMemcpyAsync");
    // Unlike the other one it also knows its way where a GPU cannot reach the memory pool of another.
    check(op, cudaMemcpyPeerAsync(target, to, source, from, size, stream()), "cudaMemcpyPeerAsync");
  }

  void fill(DType dtype, int64_t n, double value, void* target) const override {
    if (n <= 0) return;
    const Op op("fill", {{"n", n}});
    with_element(dtype, [&](auto element) {
      using E = decltype(element);
      const E filled = convert<E>(value);
      const std::array<E, 2> compared{filled, E(0)};
      const bool zero = std::equal(reinterpret_cast<const char*>(&compared[0]), reinterpret_cast<const char*>(&compared[0]) + sizeof(E),
                                   reinterpret_cast<const char*>(&compared[1]));  // not minus zero
      if (zero || sizeof(E) == 1) {
        const int byte = zero ? 0 : static_cast<int>(filled);
        return check(op, cudaMemsetAsync(target, byte, static_cast<size_t>(n) * sizeof(E), stream()), "cudaMemsetAsync");
      }
      E* const out = static_cast<E*>(target);
      const Flat flat = Flat::of<Pack<E>::size>(n, out);
      launch(op, fill_with<E>, flat.blocks<Pack<E>::size>(), flat_threads, 0, stream(), flat, out, filled);
    });
  }

  void cast(DType from, DType to, int64_t n, const void* source, void* target) const override {
    if (from == to) return copy(n * static_cast<int64_t>(size_of(from)), source, target);
    with_element(from, [&](auto from_element) {
      with_element(to, [&](auto to_element) {
        using From = decltype(from_element);
        using To = decltype(to_element);
        if constexpr (!std::is_same_v<From, To>) {
          const Flat flat = Flat::of<cast_chunk>(n, static_cast<const From*>(source), static_cast<const To*>(target));
          launch(Op("cast", {{"n", n}}), cast_to<To, From>, flat.blocks<cast_chunk>(), flat_threads, 0, stream(), flat,
                 static_cast<const From*>(source), static_cast<To*>(target));
        }
      });
    });
  }

  void iota(DType dtype, int64_t n, double start, double step, void* target) const override {
    with_element(dtype, [&](auto element) {
      using E = decltype(element);
      E* const out = static_cast<E*>(target);
      const Flat flat = Flat::of<Pack<E>::size>(n, out);
      launch(Op("iota", {{"n", n}}), count_up<E>, flat.blocks<Pack<E>::size>(), flat_threads, 0, stream(), flat, out, start, step);
    });
  }

  void strided_copy(size_t element_size, const Broadcast& space, const void* source, void* target) const override {
    if (space.numel == 0) return;
    if (element_size == 1) return strided(space, static_cast<const uint8_t*>(source), static_cast<uint8_t*>(target));
    if (element_size == 4) return strided(space, static_cast<const uint32_t*>(source), static_cast<uint32_t*>(target));
    strided(space, static_cast<const uint64_t*>(source), static_cast<uint64_t*>(target));
  }

  void copy_2d(int64_t rows, int64_t width_bytes, const void* source, int64_t source_pitch, void* target, int64_t target_pitch) const override {
    if (rows <= 0 || width_bytes <= 0) return;
    const auto bytes = [](int64_t n) { return static_cast<uint64_t>(n); };
    with_unit(address(source) | address(target) | bytes(width_bytes) | bytes(source_pitch) | bytes(target_pitch), [&]<class Unit>() {
      constexpr int64_t size = sizeof(Unit);
      const int64_t width = width_bytes / size, from_pitch = source_pitch / size, to_pitch = target_pitch / size;
      if (rows == 1 || width > most_narrow) {
        for (int64_t row = 0; row < rows; ++row)
          copy(width_bytes, static_cast<const char*>(source) + row * source_pitch, static_cast<char*>(target) + row * target_pitch);
        return;
      }
      in_row_parts(rows, width, [&](int64_t row, int64_t count) {
        const int64_t n = count * width;
        launch(Op("copy_2d", {{"rows", rows}, {"width_bytes", width_bytes}}), copy_rows<Unit>, unit_blocks(n), threads, 0, stream(),
               static_cast<uint32_t>(n), Divider(width), static_cast<const Unit*>(source) + row * from_pitch, from_pitch,
               static_cast<Unit*>(target) + row * to_pitch, to_pitch);
      });
    });
  }

  void gather_rows(int64_t count, int64_t rows, int64_t row_bytes, const void* source, const int64_t* index, void* target) const override {
    if (count <= 0 || row_bytes <= 0) return;
    const FaultReport fault = fault_report("gather_rows", "index");
    with_unit(address(source) | address(target) | static_cast<uint64_t>(row_bytes), [&]<class Unit>() {
      const int64_t pitch = row_bytes / static_cast<int64_t>(sizeof(Unit));
      for (int64_t left = 0; left < pitch; left += most_narrow) {
        const int64_t width = std::min(most_narrow, pitch - left);
        in_row_parts(count, width, [&](int64_t row, int64_t part) {
          const int64_t n = part * width;
          launch(Op("gather_rows", {{"count", count}, {"rows", rows}, {"row_bytes", row_bytes}}), pick_rows<Unit>, unit_blocks(n), threads, 0,
                 stream(), static_cast<uint32_t>(n), Divider(width), pitch, rows, static_cast<const Unit*>(source) + left, index + row,
                 static_cast<Unit*>(target) + row * pitch + left, row, fault);
        });
      }
    });
  }
};

}  // namespace

}  // namespace cuda

const MoveKernels& CudaBackend::move() {
  static const cuda::CudaMove kernels;
  return kernels;
}

}  // namespace lamina::kernels
