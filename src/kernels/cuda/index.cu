// Gathering, and its adjoint: sums of terms that share a target. These are deterministic without float atomics: the terms are sorted by target,
// stably, and added up in their order, in chunks that the number of terms alone decides; a second launch joins what crosses chunks.

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <type_traits>

#include "kernels/cuda/backend.h"
#include "kernels/cuda/device/broadcast.cuh"
#include "kernels/cuda/device/chunk.cuh"
#include "kernels/cuda/device/fault.cuh"
#include "kernels/cuda/device/sort.cuh"

namespace lamina::kernels {

namespace cuda {

namespace {

/// Terms that go to target row index[p] of `rows`; those that have none get the key `rows`, which comes last.
struct RowKeys {
  __device__ int64_t key(int64_t p, bool report) const {
    const int64_t row = index[p];
    if (static_cast<uint64_t>(row) < static_cast<uint64_t>(rows)) return row;
    if (report) fault.in_range(p, row, rows);
    return rows;
  }
  __device__ int64_t position(int64_t p) const { return p; }

  dptr<const int64_t> index;
  int64_t rows;
  FaultReport fault;
};

/// An index [outer, count, inner] along the middle axis of [outer, axis, inner].
struct AxisIndex {
  int64_t axis;
  WideDivider block, inner;  // by count * inner and by inner
  dptr<const int64_t> index;
  FaultReport fault;

  /// The place of element p in [outer, axis, inner], or -1.
  __device__ int64_t target(int64_t p, bool report) const {
    const int64_t at = index[p];
    if (static_cast<uint64_t>(at) >= static_cast<uint64_t>(axis)) {
      if (report) fault.in_range(p, at, axis);
      return -1;
    }
    return (block.quotient(p) * axis + at) * inner.divisor + p - inner.quotient(p) * inner.divisor;
  }
};
struct ElementKeys {
  __device__ int64_t key(int64_t p, bool report) const {
    const int64_t target = of.target(p, report);
    return target < 0 ? elements : target;
  }
  __device__ int64_t position(int64_t p) const { return p; }

  AxisIndex of;
  int64_t elements;
};

constexpr int threads = 256, per_thread = 4;

template <class T>
__global__ void __launch_bounds__(threads) gather_along(int64_t n, AxisIndex index, dptr<const T> x, dptr<T> y) {
  const int64_t first = int64_t{blockIdx.x} * threads * per_thread + threadIdx.x;
  int64_t from[per_thread];
#pragma unroll
  for (int i = 0; i < per_thread; ++i) from[i] = first + i * threads < n ? index.target(first + i * threads, true) : -1;
#pragma unroll
  for (int i = 0; i < per_thread; ++i)
    if (first + i * threads < n) y[first + i * threads] = from[i] < 0 ? T(0) : T(x[from[i]]);
}

/// dx += dy, where a thread has all elements of one [count] line, so that nobody else writes to their targets.
template <class T>
__global__ void __launch_bounds__(threads) scatter_lines(int64_t lines, int64_t count, AxisIndex index, dptr<const T> dy, dptr<T> dx) {
  for (int64_t line = int64_t{blockIdx.x} * threads + threadIdx.x; line < lines; line += int64_t{gridDim.x} * threads) {
    const int64_t inner = index.inner.divisor, outer = index.inner.quotient(line), first = outer * count * inner + line - outer * inner;
    for (int64_t j = 0; j < count; ++j) {
      const int64_t target = index.target(first + j * inner, true);
      if (target >= 0) dx[target] += dy[first + j * inner];
    }
  }
}

/// Terms sorted by target row, in chunks. heads and tails [chunks][width] hold the sums of runs that cross chunks: a chunk's part of a run that began
/// before it, and of one that begins in it and goes on after it.
template <class T>
struct Runs {
  int64_t count, chunk, chunks, width, rows;
  dptr<const int64_t> keys, positions;
  dptr<const T> source;
  dptr<T> target, heads, tails;
};

constexpr int sum_threads = 128, ahead = 4;  // terms that are loaded before the first is added

/// f(chunk, column) for what this thread does.
template <class T, int vec, class F>
__device__ void each_column(const Runs<T>& runs, F f) {
  const int64_t chunk = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  if (chunk >= runs.chunks) return;
  const int64_t step = int64_t{gridDim.y} * blockDim.x * vec;
  for (int64_t column = (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * vec; column < runs.width; column += step) f(chunk, column);
}

template <class T, int vec>
__device__ void add(Chunk<T, vec>& sum, const Chunk<T, vec>& value) {
  for (int k = 0; k < vec; ++k) sum.at[k] += value.at[k];
}

template <class T, int vec>
__global__ void __launch_bounds__(sum_threads) sum_chunks(Runs<T> runs) {
  each_column<T, vec>(runs, [&](int64_t chunk, int64_t column) {
    const int64_t begin = chunk * runs.chunk, end = begin + runs.chunk < runs.count ? begin + runs.chunk : runs.count;
    int64_t key = runs.keys[begin];
    bool from_before = begin > 0 && runs.keys[begin - 1] == key;
    Chunk<T, vec> sum = {};
    const auto finish = [&] {
      if (key >= runs.rows) return;
      store_chunk<T, vec>((from_before ? runs.heads + chunk * runs.width : runs.target + key * runs.width) + column, sum);
    };
    for (int64_t first = begin; first < end; first += ahead) {
      int64_t keys[ahead];
      Chunk<T, vec> values[ahead];
#pragma unroll
      for (int i = 0; i < ahead; ++i) {
        if (first + i >= end) continue;
        keys[i] = runs.keys[first + i];
        values[i] = load_chunk<T, vec>(runs.source + runs.positions[first + i] * runs.width + column);
      }
#pragma unroll
      for (int i = 0; i < ahead; ++i) {
        if (first + i >= end) continue;
        if (keys[i] != key) {
          finish();
          key = keys[i];
          from_before = false;
          sum = {};
        }
        add(sum, values[i]);
      }
    }
    if (!from_before && end < runs.count && runs.keys[end] == key)
      store_chunk<T, vec>(runs.tails + chunk * runs.width + column, sum);
    else
      finish();
  });
}

/// Adds up the run that begins in a chunk and goes on after it, if there is one.
template <class T, int vec>
__global__ void __launch_bounds__(sum_threads) join_chunks(Runs<T> runs) {
  each_column<T, vec>(runs, [&](int64_t chunk, int64_t column) {
    const int64_t begin = chunk * runs.chunk, end = begin + runs.chunk;
    if (end >= runs.count) return;
    const int64_t key = runs.keys[end];
    if (key >= runs.rows || runs.keys[end - 1] != key || (begin > 0 && runs.keys[begin - 1] == key)) return;
    int64_t last = chunk + 1, beyond = runs.chunks;  // the run reaches `last`, but not `beyond`
    while (beyond - last > 1) {
      const int64_t middle = (last + beyond) / 2;
      (runs.keys[middle * runs.chunk] == key ? last : beyond) = middle;
    }
    Chunk<T, vec> sum = load_chunk<T, vec>(runs.tails + chunk * runs.width + column);
#pragma unroll 4
    for (int64_t other = chunk + 1; other <= last; ++other) add(sum, load_chunk<T, vec>(runs.heads + other * runs.width + column));
    store_chunk<T, vec>(runs.target + key * runs.width + column, sum);
  });
}

/// target [rows, width] = zeros plus the `count` rows of source at their keys.
template <class T, class Keys>
void sum_by_key(const Op& op, int64_t count, int64_t width, const T* source, int64_t rows, T* target, const Keys& keys) {
  if (rows > 0) check(op, cudaMemsetAsync(target, 0, static_cast<size_t>(rows * width) * sizeof(T), stream()), "cudaMemsetAsync");
  if (count == 0) return;
  const SortedPositions sorted(op, count, std::max(static_cast<int>(std::bit_width(static_cast<uint64_t>(rows))), 1), keys);
  int64_t chunk = 32;
  while (chunk * chunk < count) chunk *= 2;  // about as many chunks as terms in one: neither sum is long
  const int64_t chunks = (count + chunk - 1) / chunk;
  const Scratch<T> heads(op, chunks * width), tails(op, chunks * width);
  const Runs<T> runs{count, chunk, chunks, width, rows, sorted.keys(), sorted.positions(), source, target, heads.data(), tails.data()};
  const auto run = [&]<int vec>() {
    const int64_t columns = width / vec;
    dim3 block(1, sum_threads);
    while (block.x < columns && block.x < sum_threads) block = dim3(block.x * 2, block.y / 2);
    const dim3 grid(blocks_for(chunks, block.y, INT32_MAX), blocks_for(columns, block.x, 65'535));
    launch(op.at("sum_chunks"), sum_chunks<T, vec>, grid, block, 0, stream(), runs);
    launch(op.at("join_chunks"), join_chunks<T, vec>, grid, block, 0, stream(), runs);
  };
  constexpr int widest = Pack<T>::size;
  if (width % widest == 0 && chunks_fit<widest>(source) && chunks_fit<widest>(target)) return run.template operator()<widest>();
  run.template operator()<1>();
}

AxisIndex axis_index(const char* op, int64_t outer, int64_t axis, int64_t count, int64_t inner, const int64_t* index) {
  const int64_t most = outer * count * inner;
  return {axis, WideDivider(count * inner, most), WideDivider(inner, most), index, fault_report(op, "index")};
}

template <class T>
struct CudaIndex final : IndexKernels<T> {
  void scatter_add_rows(int64_t count, int64_t width, const T* source, const int64_t* index, int64_t rows, T* target) const override {
    if constexpr (std::is_floating_point_v<T>) {
      if (width == 0) return;
      const RowKeys keys{index, rows, fault_report("scatter_add_rows", "index")};
      sum_by_key(Op("scatter_add_rows", {{"count", count}, {"width", width}, {"rows", rows}}), count, width, source, rows, target, keys);
    } else {
      std::abort();
    }
  }

  void gather(int64_t outer, int64_t axis, int64_t count, int64_t inner, const T* x, const int64_t* index, T* y) const override {
    const int64_t n = outer * count * inner;
    if (n == 0) return;
    launch(Op("gather", {{"outer", outer}, {"axis", axis}, {"count", count}, {"inner", inner}}), gather_along<T>,
           blocks_for(n, threads * per_thread, INT32_MAX), threads, 0, stream(), n, axis_index("gather", outer, axis, count, inner, index), x, y);
  }

  void scatter_add(int64_t outer, int64_t axis, int64_t count, int64_t inner, const T* dy, const int64_t* index, T* dx) const override {
    if constexpr (std::is_floating_point_v<T>) {
      const Op op("scatter_add", {{"outer", outer}, {"axis", axis}, {"count", count}, {"inner", inner}});
      const int64_t lines = outer * inner, elements = lines * axis;
      if (lines == 0) return;
      if (count == 0) return zero(op, elements, dx);
      const AxisIndex along = axis_index("scatter_add", outer, axis, count, inner, index);
      constexpr int64_t short_line = 32, many_lines = 65'536;
      if (count > short_line && lines < many_lines) {
        sum_by_key(op, lines * count, 1, dy, elements, dx, ElementKeys{along, elements});
        return;
      }
      zero(op, elements, dx);
      launch(op.at("scatter_lines"), scatter_lines<T>, blocks_for(lines, threads, 8192), threads, 0, stream(), lines, count, along, dy, dx);
    } else {
      std::abort();
    }
  }

 private:
  static void zero(const Op& op, int64_t n, T* memory) {
    if (n > 0) check(op, cudaMemsetAsync(memory, 0, static_cast<size_t>(n) * sizeof(T), stream()), "cudaMemsetAsync");
  }
};

template <class T>
const IndexKernels<T>& instance() {
  static const CudaIndex<T> kernels;
  return kernels;
}

}  // namespace

}  // namespace cuda

template <>
const IndexKernels<float>& CudaBackend::index<float>() {
  return cuda::instance<float>();
}
template <>
const IndexKernels<double>& CudaBackend::index<double>() {
  return cuda::instance<double>();
}
template <>
const IndexKernels<int64_t>& CudaBackend::index<int64_t>() {
  return cuda::instance<int64_t>();
}
template <>
const IndexKernels<uint8_t>& CudaBackend::index<uint8_t>() {
  return cuda::instance<uint8_t>();
}

}  // namespace lamina::kernels
