// Row normaliser: rows up to 4 KB (1024 floats) belong to a warp, longer ones to a block; up to 32 KB they are held in registers, so that x, and dy,
// are read once. Longer rows are kept in shared memory if they fit, else read once per pass, or, if they are few, cut (norm_row_parts.cu). dgain and
// dbias are summed in two stages, each in a fixed order.

#include <algorithm>

#include "kernels/cuda/device/norm_row.cuh"
#include "kernels/cuda/norm.h"

namespace lamina::kernels::cuda {

namespace {

template <class T, class Row>
__global__ void __launch_bounds__(Row::Group::block_threads)
    row_forward(RowNorm spec, bool cached, dptr<const T> x, dptr<const T> gain, dptr<const T> bias, dptr<T> y, dptr<T> mean, dptr<T> rstd) {
  const int64_t width = spec.width;
  const dptr<T> cache = cached ? dptr<T>(shared<T>(width)) : dptr<T>(nullptr);
  Row held;
  for (int64_t row = first_row<Row>(); row < spec.rows; row += rows_at_once<Row>()) {
    const dptr<const T> x_row = x + row * width;
    const dptr<T> y_row = y + row * width;
    held.fill(width, x_row, cache);
    const RowStatistics<T> s = measure<T>(spec.centre, spec.eps, measured_width(spec), held, x_row[0]);
    if (Row::Group::rank() == 0) {
      if (spec.centre) mean[row] = s.mean, mean[spec.rows + row] = s.shift;
      rstd[row] = s.rstd;
    }
    const AffineColumns affine(spec, row);
    const T offset = -s.shift * s.rstd;
    Row::each(width, [&](int item, int64_t column) {
      T values[Row::vec], g[Row::vec], b[Row::vec];
      held.get(item, column, values);
      affine.get(gain, column, T(1), g);
      affine.get(bias, column, T(0), b);
      for (int k = 0; k < Row::vec; ++k) values[k] = std::fma(std::fma(values[k] - s.mean, s.rstd, offset), g[k], b[k]);
      store<T, Row::vec>(y_row + column, values);
    });
  }
}

// Adds the column sums of a block's groups in their order and stores them: dgain's, then dbias's, in part [2][width].
template <class T, class Row>
__device__ void store_part(int64_t width, const T (&gain_sums)[Row::items], const T (&bias_sums)[Row::items], dptr<T> part) {
  if constexpr (Row::Group::per_block == 1) {
    Row::each(width, [&](int item, int64_t column) {
      for (int k = 0; k < Row::vec; ++k) {
        part[column + k] = gain_sums[item + k];
        part[width + column + k] = bias_sums[item + k];
      }
    });
  } else {
    const dptr<T> totals = shared<T>(2 * width);
    for (int group = 0; group < Row::Group::per_block; ++group) {
      if (Row::Group::number() == group) {
        Row::each(width, [&](int item, int64_t column) {
          for (int k = 0; k < Row::vec; ++k) {
            const T before_gain = group == 0 ? T(0) : T(totals[column + k]), before_bias = group == 0 ? T(0) : T(totals[width + column + k]);
            totals[column + k] = before_gain + gain_sums[item + k];
            totals[width + column + k] = before_bias + bias_sums[item + k];
          }
        });
      }
      __syncthreads();
    }
    for (int64_t i = threadIdx.x; i < 2 * width; i += Row::Group::block_threads) part[i] = totals[i];
  }
}

// dx; with kParts, also one part of dgain and dbias for each block. offsets [rows], if not null, receives those of x-hat.
template <class T, class Row, bool kParts>
__global__ void __launch_bounds__(Row::Group::block_threads)
    row_backward(RowNorm spec, bool cached, dptr<const T> x, dptr<const T> gain, dptr<const T> mean, dptr<const T> rstd, dptr<const T> dy, dptr<T> dx,
                 dptr<T> offsets, dptr<T> parts) {
  constexpr int vec = Row::vec;
  const int64_t width = spec.width;
  Row x_held, dy_held;
  [[maybe_unused]] T gain_sums[Row::items] = {}, bias_sums[Row::items] = {};
  for (int64_t row = first_row<Row>(); row < spec.rows; row += rows_at_once<Row>()) {
    x_held.fill(width, x + row * width, cached ? dptr<T>(shared<T>(width)) : dptr<T>(nullptr));
    dy_held.fill(width, dy + row * width, cached ? dptr<T>(shared<T>(width, width * static_cast<int64_t>(sizeof(T)))) : dptr<T>(nullptr));
    const AffineColumns affine(spec, row);
    RowGradient<T> gradient(spec, row, mean, rstd);
    double sums[RowGradient<T>::sums];
    add_items<Row, T>(width, sums, [&](int item, int64_t column, T(&terms)[RowGradient<T>::sums]) {
      T xs[vec], dys[vec], g[vec];
      x_held.get(item, column, xs);
      dy_held.get(item, column, dys);
      affine.get(gain, column, T(1), g);
      for (int k = 0; k < vec; ++k) gradient.add(column + k, xs[k], dys[k] * g[k], terms);
    });
    gradient.set(sums);
    if (offsets != nullptr && Row::Group::rank() == 0) offsets[row] = gradient.offset;
    if (!kParts && dx == nullptr) continue;
    Row::each(width, [&](int item, int64_t column) {
      T xs[vec], dys[vec], g[vec], out[vec];
      x_held.get(item, column, xs);
      dy_held.get(item, column, dys);
      affine.get(gain, column, T(1), g);
      for (int k = 0; k < vec; ++k) {
        const T xhat = gradient.xhat(xs[k]);
        out[k] = gradient.dx(column + k, xhat, dys[k], g[k]);
        if constexpr (kParts) {
          gain_sums[item + k] = std::fma(dys[k], xhat, gain_sums[item + k]);
          bias_sums[item + k] += dys[k];
        }
      }
      if (dx != nullptr) store<T, vec>(dx + row * width + column, out);
    });
  }
  if constexpr (kParts) store_part<T, Row>(width, gain_sums, bias_sums, parts + int64_t{blockIdx.x} * 2 * width);
}

// Element e of the whole array uses parameter e / inner % count: [turns, count, inner], the last turn may be cut short.
template <class T>
struct AffineTerms {
  RowNorm spec;
  dptr<const T> x, mean, rstd, offsets, dy;

  __device__ int64_t size() const { return spec.rows * spec.width; }
  /// Adds an element's terms of dgain and dbias.
  template <class Sum>
  __device__ void add(int64_t element, Sum& gain_sum, Sum& bias_sum) const {
    const int64_t row = element / spec.width;
    const T g = dy[element], m = spec.centre ? T(mean[row]) : T(0);
    gain_sum += static_cast<Sum>(g * std::fma(x[element] - m, rstd[row], offsets[row]));
    bias_sum += static_cast<Sum>(g);
  }
};

constexpr int tile = 32, slices = 8;  // columns of a block, and threads that share a column's terms

// inner = 1: neighbouring threads take neighbouring parameters. One part for each blockIdx.y.
template <class T>
__global__ void __launch_bounds__(tile* slices) affine_parts_by_column(AffineTerms<T> terms, int64_t turns, int64_t turns_per_part, dptr<T> parts) {
  __shared__ shared_array<T, slices * tile> gains;
  __shared__ shared_array<T, slices * tile> biases;
  const int64_t count = terms.spec.affine_count, a = int64_t{blockIdx.x} * tile + threadIdx.x;
  const int64_t begin = int64_t{blockIdx.y} * turns_per_part, end = begin + turns_per_part < turns ? begin + turns_per_part : turns;
  T gain_sum = 0, bias_sum = 0;
  for (int64_t turn = begin + threadIdx.y; turn < end && a < count; turn += slices)
    if (turn * count + a < terms.size()) terms.add(turn * count + a, gain_sum, bias_sum);
  const int at = static_cast<int>(threadIdx.y * tile + threadIdx.x);
  gains[at] = gain_sum;
  biases[at] = bias_sum;
  __syncthreads();
  if (threadIdx.y != 0 || a >= count) return;
  for (int slice = 1; slice < slices; ++slice) {
    gain_sum += gains[slice * tile + at];
    bias_sum += biases[slice * tile + at];
  }
  const dptr<T> part = parts + int64_t{blockIdx.y} * 2 * count;
  part[a] = gain_sum;
  part[count + a] = bias_sum;
}

using RunGroup = BlockGroup<128>;

// inner > 1: a block takes one parameter's runs of one part.
template <class T>
__global__ void __launch_bounds__(RunGroup::threads) affine_parts_by_run(AffineTerms<T> terms, int64_t turns, int64_t turns_per_part, dptr<T> parts) {
  const int64_t count = terms.spec.affine_count, inner = terms.spec.affine_inner, a = blockIdx.x;
  const int64_t begin = int64_t{blockIdx.y} * turns_per_part, end = begin + turns_per_part < turns ? begin + turns_per_part : turns;
  double sums[2] = {};
  for (int64_t i = RunGroup::rank(); i < (end - begin) * inner; i += RunGroup::threads) {
    const int64_t element = ((begin + i / inner) * count + a) * inner + i % inner;
    if (element < terms.size()) terms.add(element, sums[0], sums[1]);
  }
  RunGroup::sum(sums);
  if (RunGroup::rank() != 0) return;
  const dptr<T> part = parts + int64_t{blockIdx.y} * 2 * count;
  part[a] = static_cast<T>(sums[0]);
  part[count + a] = static_cast<T>(sums[1]);
}

// The second stage: dgain (blockIdx.y = 0) or dbias (1) is the sum of the parts [n][2][count], in double.
template <class T>
__global__ void __launch_bounds__(tile* slices) add_parts(int64_t count, int64_t n, dptr<const T> parts, dptr<T> dgain, dptr<T> dbias) {
  __shared__ shared_array<double, slices * tile> sums;
  const dptr<T> result = blockIdx.y == 0 ? dgain : dbias;
  if (result == nullptr) return;
  const int64_t a = int64_t{blockIdx.x} * tile + threadIdx.x;
  double sum = 0;
  for (int64_t part = threadIdx.y; part < n && a < count; part += slices) sum += static_cast<double>(T(parts[(2 * part + blockIdx.y) * count + a]));
  const int at = static_cast<int>(threadIdx.y * tile + threadIdx.x);
  sums[at] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || a >= count) return;
  for (int slice = 1; slice < slices; ++slice) sum += sums[slice * tile + at];
  result[a] = static_cast<T>(sum);
}

// The host's side.

// The first stage for parameters that no row kernel summed: how many turns make a part, from the shape alone.
template <class T>
int64_t affine_parts(const Op& op, const AffineTerms<T>& terms, int64_t most, T* parts) {
  const int64_t period = terms.spec.affine_count * terms.spec.affine_inner, size = terms.spec.rows * terms.spec.width;
  const int64_t turns = (size + period - 1) / period, turns_per_part = std::max<int64_t>((turns + most - 1) / most, 1);
  const auto n = static_cast<unsigned>((turns + turns_per_part - 1) / turns_per_part);
  if (terms.spec.affine_inner == 1) {
    const dim3 grid(blocks_for(terms.spec.affine_count, tile, INT32_MAX), n), block(tile, slices);
    launch(op.at("affine_parts_by_column"), affine_parts_by_column<T>, grid, block, 0, stream(), terms, turns, turns_per_part, parts);
  } else {
    const dim3 grid(blocks_for(terms.spec.affine_count, 1, INT32_MAX), n);
    launch(op.at("affine_parts_by_run"), affine_parts_by_run<T>, grid, RunGroup::threads, 0, stream(), terms, turns, turns_per_part, parts);
  }
  return n;
}

}  // namespace

template <class T>
void row_norm_forward(const RowNorm& spec, const T* x, const T* gain, const T* bias, T* y, T* mean, T* rstd) {
  const Op op("row_norm", {{"rows", spec.rows}, {"width", spec.width}});
  if (spec.rows == 0 || spec.width == 0) {
    if (spec.centre) zero(op, mean, 2 * spec.rows);
    return zero(op, rstd, spec.rows);
  }
  const bool packs = packs_fit(x, spec.width) && packs_fit(y) && (!affine_by_column(spec) || (packs_fit(gain) && packs_fit(bias)));
  if (few_long_rows(spec)) return row_norm_forward_in_parts(op, spec, packs, x, gain, bias, y, mean, rstd);
  with_row<T>(spec.width, packs, [&](auto type) {
    using Row = typename decltype(type)::type;
    const size_t bytes = Row::held ? 0 : cache_bytes<T>(op, 1, spec.width);
    allow_shared(op, row_forward<T, Row>, bytes);
    launch(op.at("row_forward"), row_forward<T, Row>, blocks_for(spec.rows, Row::Group::per_block, most_row_blocks), Row::Group::block_threads, bytes,
           stream(), spec, bytes > 0, x, gain, bias, y, mean, rstd);
  });
}

template <class T>
void row_norm_backward(const RowNorm& spec, const T* x, const T* gain, const T* mean, const T* rstd, const T* dy, T* dx, T* dgain, T* dbias) {
  const Op op("row_norm_backward", {{"rows", spec.rows}, {"width", spec.width}, {"affine_count", spec.affine_count}});
  if (spec.rows == 0 || spec.width == 0) {
    zero(op, dgain, spec.affine_count);
    return zero(op, dbias, spec.affine_count);
  }
  constexpr int64_t most_parts = 256;  // enough blocks to fill a GPU, few enough to add up at once
  const bool parameters = spec.affine_count > 0 && (dgain || dbias);
  const bool in_rows = parameters && affine_by_column(spec) && spec.width <= longest_held<T>;
  const Scratch<T> parts(op, parameters ? most_parts * 2 * spec.affine_count : 0), offsets(op, parameters && !in_rows ? spec.rows : 0);
  int64_t n_parts = 0;
  const bool packs = packs_fit(x, spec.width) && packs_fit(dy) && packs_fit(dx) && (!affine_by_column(spec) || packs_fit(gain));
  with_row<T>(spec.width, packs, [&](auto type) {
    using Row = typename decltype(type)::type;
    using Group = typename Row::Group;
    const auto run = [&](auto* kernel, unsigned blocks, size_t bytes) {
      launch(op.at("row_backward"), kernel, blocks, Group::block_threads, bytes, stream(), spec, !Row::held && bytes > 0, x, gain, mean, rstd, dy, dx,
             offsets.data(), parts.data());
    };
    if constexpr (Row::held) {
      if (in_rows) {
        n_parts = blocks_for(spec.rows, Group::per_block, most_parts);
        const size_t bytes = Group::per_block > 1 ? 2 * static_cast<size_t>(spec.width) * sizeof(T) : 0;
        return run(row_backward<T, Row, true>, static_cast<unsigned>(n_parts), bytes);
      }
    } else if (few_long_rows(spec)) {
      return row_norm_dx_in_parts(op, spec, packs, x, gain, mean, rstd, dy, dx, offsets.data());
    }
    const size_t bytes = Row::held ? 0 : cache_bytes<T>(op, 2, spec.width);
    allow_shared(op, row_backward<T, Row, false>, bytes);
    run(row_backward<T, Row, false>, blocks_for(spec.rows, Group::per_block, most_row_blocks), bytes);
  });
  if (!parameters) return;
  if (!in_rows) n_parts = affine_parts(op, AffineTerms<T>{spec, x, mean, rstd, offsets.data(), dy}, most_parts, parts.data());
  launch(op.at("add_parts"), add_parts<T>, dim3(blocks_for(spec.affine_count, tile, INT32_MAX), 2), dim3(tile, slices), 0, stream(),
         spec.affine_count, n_parts, parts.data(), dgain, dbias);
}

template void row_norm_forward(const RowNorm&, const float*, const float*, const float*, float*, float*, float*);
template void row_norm_forward(const RowNorm&, const double*, const double*, const double*, double*, double*, double*);
template void row_norm_backward(const RowNorm&, const float*, const float*, const float*, const float*, const float*, float*, float*, float*);
template void row_norm_backward(const RowNorm&, const double*, const double*, const double*, const double*, const double*, double*, double*, double*);

}  // namespace lamina::kernels::cuda
