// Reductions. A rule says what is accumulated and how; three kernels apply it to any shape: several short rows to a warp, a block to a long row,
// columns side by side. Where the results are too few to fill a GPU, the axis is cut into parts, whose results a second launch reduces. Sums are in
// double. How a shape is cut depends on the shape alone, so every run adds in the same order.

#include <cstdlib>

#include "kernels/cuda/backend.h"
#include "kernels/cuda/device/columns.cuh"
#include "kernels/cuda/device/limits.cuh"
#include "kernels/cuda/device/row.cuh"

namespace lamina::kernels {

namespace cuda {

namespace {

// Rules: Acc is what is accumulated, of() a value (and its place on the axis) as such, store() writes a result.

template <class T>
struct Sum {
  using Acc = double;
  using Out = T;
  __device__ static Acc start() { return 0; }
  __device__ static Acc of(T value, int64_t) { return static_cast<double>(value); }
  __device__ static Acc combine(Acc a, Acc b) { return a + b; }
  __device__ static void store(dptr<T> y, int64_t i, Acc total) { y[i] = static_cast<T>(total); }
};

/// Added to what is there.
template <class T>
struct SumOfSquares : Sum<T> {
  using Out = double;
  __device__ static double of(T value, int64_t) { return static_cast<double>(value) * static_cast<double>(value); }
  __device__ static void store(dptr<double> y, int64_t i, double total) { y[i] += total; }
};

/// Whether any is not finite. Then 0 is written, else nothing.
template <class T>
struct NotFinite {
  using Acc = int;
  using Out = uint8_t;
  __device__ static Acc start() { return 0; }
  __device__ static Acc of(T value, int64_t) { return value - value == T(0) ? 0 : 1; }  // inf - inf and NaN - NaN are NaN
  __device__ static Acc combine(Acc a, Acc b) { return a | b; }
  __device__ static void store(dptr<uint8_t> y, int64_t i, Acc any) {
    if (any) y[i] = 0;
  }
};

/// A NaN wins.
template <class T, bool kLargest>
struct Extreme {
  using Acc = T;
  using Out = T;
  __device__ static Acc start() { return kLargest ? -Bounds<T>::infinite : Bounds<T>::infinite; }
  __device__ static Acc of(T value, int64_t) { return value; }
  __device__ static Acc combine(Acc a, Acc b) { return a != a || (kLargest ? a > b : a < b) ? a : b; }
  __device__ static void store(dptr<T> y, int64_t i, Acc value) { y[i] = value; }
};

template <class T>
struct Found {
  T value;
  int64_t at;
};

/// The place of the first extreme value; the first NaN wins.
template <class T, bool kLargest>
struct Place {
  using Acc = Found<T>;
  using Out = int64_t;
  __device__ static Acc start() { return {Extreme<T, kLargest>::start(), INT64_MAX}; }
  __device__ static Acc of(T value, int64_t at) { return {value, at}; }
  __device__ static Acc combine(const Acc& a, const Acc& b) {
    const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    if (a_nan != b_nan) return a_nan ? a : b;
    if (!a_nan && a.value != b.value) return (kLargest ? a.value > b.value : a.value < b.value) ? a : b;
    return a.at < b.at ? a : b;
  }
  __device__ static void store(dptr<int64_t> y, int64_t i, const Acc& best) { y[i] = best.at == INT64_MAX ? 0 : best.at; }
};

template <class Acc>
__device__ Acc from_lane(const Acc& mine, int distance) {
  return __shfl_xor_sync(all_lanes, mine, distance);
}
template <class T>
__device__ Found<T> from_lane(const Found<T>& mine, int distance) {
  return {__shfl_xor_sync(all_lanes, mine.value, distance), __shfl_xor_sync(all_lanes, mine.at, distance)};
}

/// A launch of a rule: the first takes values, later ones what the one before accumulated; the last writes results, those before accumulators.
template <class T, class kRule, bool kFirst, bool kLast>
struct Pass {
  using Rule = kRule;
  using Acc = typename Rule::Acc;
  using In = std::conditional_t<kFirst, T, Acc>;
  using Out = std::conditional_t<kLast, typename Rule::Out, Acc>;
  static constexpr bool first = kFirst;

  __device__ static Acc of(const In& value, int64_t at) {
    if constexpr (kFirst)
      return Rule::of(value, at);
    else
      return value;
  }
  __device__ static void store(dptr<Out> y, int64_t i, const Acc& acc) {
    if constexpr (kLast)
      Rule::store(y, i, acc);
    else
      y[i] = acc;
  }
  /// Adds the elements of a row from `from` on, in steps, up to `end`; kVec at a time, if they begin at a multiple.
  template <int kVec>
  __device__ static void add(dptr<const In> row, int64_t from, int64_t end, int64_t step, Acc& acc) {
#pragma unroll 4
    for (int64_t j = from; j < end; j += step) {
      In values[kVec];
      if constexpr (kVec == 1)
        values[0] = row[j];
      else
        load(row + j, values);
      for (int k = 0; k < kVec; ++k) acc = Rule::combine(acc, of(values[k], j + k));
    }
  }
};

constexpr int threads = 256;

/// inner = 1, short rows: `lanes` neighbouring threads of a warp take one.
template <class P, int kVec>
__global__ void __launch_bounds__(threads)
    reduce_short_rows(int64_t rows, int64_t axis, int lanes, dptr<const typename P::In> x, dptr<typename P::Out> y) {
  const int lane = static_cast<int>(threadIdx.x) % lanes, per_block = threads / lanes;
  for (int64_t top = int64_t{blockIdx.x} * per_block; top < rows; top += int64_t{gridDim.x} * per_block) {
    const int64_t row = top + static_cast<int>(threadIdx.x) / lanes;
    typename P::Acc acc = P::Rule::start();
    if (row < rows) P::template add<kVec>(x + row * axis, int64_t{lane} * kVec, axis, int64_t{lanes} * kVec, acc);
    for (int distance = lanes / 2; distance > 0; distance /= 2) acc = P::Rule::combine(acc, from_lane(acc, distance));
    if (lane == 0 && row < rows) P::store(y, row, acc);
  }
}

/// inner = 1, long rows: a block takes one part of one. y [rows, parts].
template <class P, int kVec>
__global__ void __launch_bounds__(threads)
    reduce_long_rows(int64_t rows, int64_t axis, Parts cut, dptr<const typename P::In> x, dptr<typename P::Out> y) {
  constexpr int warps = threads / warp_size;
  __shared__ shared_array<typename P::Acc, warps> of_warp;
  for (int64_t unit = blockIdx.x; unit < rows * cut.parts; unit += gridDim.x) {
    const int64_t begin = unit % cut.parts * cut.length, end = begin + cut.length < axis ? begin + cut.length : axis;
    typename P::Acc acc = P::Rule::start();
    P::template add<kVec>(x + unit / cut.parts * axis, begin + int64_t{threadIdx.x} * kVec, end, threads * kVec, acc);
    for (int distance = warp_size / 2; distance > 0; distance /= 2) acc = P::Rule::combine(acc, from_lane(acc, distance));
    if (WarpGroup::rank() == 0) of_warp[WarpGroup::number()] = acc;
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int warp = 1; warp < warps; ++warp) {
        const typename P::Acc other = of_warp[warp];
        acc = P::Rule::combine(acc, other);
      }
      P::store(y, unit, acc);
    }
    __syncthreads();  // before the next unit
  }
}

/// inner > 1: a block takes one part of a tile of columns. y [outer, parts, inner].
template <class P>
__global__ void __launch_bounds__(column_threads)
    reduce_columns(ColumnTiles tiles, Parts cut, dptr<const typename P::In> x, dptr<typename P::Out> y) {
  for (int64_t unit = blockIdx.x; unit < tiles.tiles * cut.parts; unit += gridDim.x) {
    const ColumnThread mine(tiles, unit / cut.parts);
    const int64_t part = unit % cut.parts, begin = part * cut.length, end = begin + cut.length < tiles.axis ? begin + cut.length : tiles.axis;
    typename P::Acc acc = P::Rule::start();
    if (mine.inside) {
      const dptr<const typename P::In> column = x + mine.from;
#pragma unroll 4
      for (int64_t j = begin + mine.slice; j < end; j += tiles.slices) {
        const typename P::In value = column[j * tiles.inner];
        acc = P::Rule::combine(acc, P::of(value, j));
      }
    }
    acc = combine_slices(tiles, acc, [](const auto& a, const auto& b) { return P::Rule::combine(a, b); });
    if (mine.inside && mine.slice == 0) P::store(y, (mine.outer * cut.parts + part) * tiles.inner + mine.column % tiles.inner, acc);
  }
}

// The host's side.

constexpr int64_t longest_short = 1024;  // elements of a row that a warp takes

Parts cut_of(int64_t outer, int64_t axis, int64_t inner) {
  if (inner > 1) return parts_of(ColumnTiles(outer, axis, inner));
  return axis <= longest_short ? Parts{1, axis} : parts_of(outer, axis, 8 * 1024, 1024);
}

template <class P, int kVec>
void run_rows(const Op& op, int64_t rows, int64_t axis, Parts cut, const typename P::In* x, typename P::Out* y) {
  if (axis > longest_short) {
    launch(op.at("reduce_long_rows"), reduce_long_rows<P, kVec>, blocks_for(rows * cut.parts, 1, INT32_MAX), threads, 0, stream(), rows, axis, cut, x,
           y);
    return;
  }
  int lanes = 1;
  while (lanes < warp_size && 2 * kVec * lanes < axis) lanes *= 2;
  launch(op.at("reduce_short_rows"), reduce_short_rows<P, kVec>, blocks_for(rows, threads / lanes, INT32_MAX), threads, 0, stream(), rows, axis,
         lanes, x, y);
}

template <class P>
void run(const Op& op, int64_t outer, int64_t axis, int64_t inner, Parts cut, const typename P::In* x, typename P::Out* y) {
  if (inner > 1) {
    const ColumnTiles tiles(outer, axis, inner);
    launch(op.at("reduce_columns"), reduce_columns<P>, blocks_for(tiles.tiles * cut.parts, 1, INT32_MAX), column_threads, 0, stream(), tiles, cut, x,
           y);
    return;
  }
  if constexpr (P::first)
    if (packs_fit(x, axis)) return run_rows<P, Pack<typename P::In>::size>(op, outer, axis, cut, x, y);
  run_rows<P, 1>(op, outer, axis, cut, x, y);
}

template <class Rule, class T>
void reduce(const Op& op, int64_t outer, int64_t axis, int64_t inner, const T* x, typename Rule::Out* y) {
  if (outer == 0 || inner == 0) return;
  const Parts cut = cut_of(outer, axis, inner);
  if (cut.parts == 1) return run<Pass<T, Rule, true, true>>(op, outer, axis, inner, cut, x, y);
  const Scratch<typename Rule::Acc> parts(op, outer * cut.parts * inner);
  run<Pass<T, Rule, true, false>>(op, outer, axis, inner, cut, x, parts.data());
  run<Pass<T, Rule, false, true>>(op, outer, cut.parts, inner, {1, cut.parts}, parts.data(), y);
}

template <class T>
struct CudaReduce final : ReduceKernels<T> {
  void reduce(Reduction kind, int64_t outer, int64_t axis, int64_t inner, const T* x, T* y) const override {
    const Op op("reduce", {{"outer", outer}, {"axis", axis}, {"inner", inner}});
    switch (kind) {
      case Reduction::sum: return cuda::reduce<Sum<T>>(op, outer, axis, inner, x, y);
      case Reduction::max: return cuda::reduce<Extreme<T, true>>(op, outer, axis, inner, x, y);
      case Reduction::min: return cuda::reduce<Extreme<T, false>>(op, outer, axis, inner, x, y);
    }
    std::abort();
  }
  void arg_reduce(bool largest, int64_t outer, int64_t axis, int64_t inner, const T* x, int64_t* y) const override {
    const Op op("arg_reduce", {{"outer", outer}, {"axis", axis}, {"inner", inner}});
    if (largest) return cuda::reduce<Place<T, true>>(op, outer, axis, inner, x, y);
    cuda::reduce<Place<T, false>>(op, outer, axis, inner, x, y);
  }
  void sum_of_squares(int64_t n, const T* x, double* sum) const override {
    if (n > 0) cuda::reduce<SumOfSquares<T>>(Op("sum_of_squares", {{"n", n}}), 1, n, 1, x, sum);
  }
  void all_finite(int64_t n, const T* x, uint8_t* finite) const override {
    if (n > 0) cuda::reduce<NotFinite<T>>(Op("all_finite", {{"n", n}}), 1, n, 1, x, finite);
  }
};

}  // namespace

}  // namespace cuda

template <>
const ReduceKernels<float>& CudaBackend::reduce<float>() {
  static const cuda::CudaReduce<float> kernels;
  return kernels;
}
template <>
const ReduceKernels<double>& CudaBackend::reduce<double>() {
  static const cuda::CudaReduce<double> kernels;
  return kernels;
}

}  // namespace lamina::kernels
