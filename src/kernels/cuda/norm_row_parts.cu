// Few, very long rows (group norm of one large image): a block for each would leave most of a GPU idle, so blocks take parts of a row. Sums of the
// parts are added up in their order, and how rows are cut depends on the shape alone. Statistics are the channel normaliser's, which cuts as well.

#include "kernels/cuda/device/columns.cuh"
#include "kernels/cuda/device/norm_row.cuh"
#include "kernels/cuda/norm.h"

namespace lamina::kernels::cuda {

namespace {

using PartGroup = BlockGroup<256>;

/// A block's part of a row: number blockIdx.x of row blockIdx.y.
template <int kVec>
struct RowPart {
  __device__ RowPart(const RowNorm& spec, const Parts& cut)
      : row(blockIdx.y), start(row * spec.width), begin(int64_t{blockIdx.x} * cut.length), end(begin + cut.length) {
    if (end > spec.width) end = spec.width;
  }
  /// f(first column) for every pack of this thread.
  template <class F>
  __device__ void each(F f) const {
    for (int64_t column = begin + int64_t{PartGroup::rank()} * kVec; column < end; column += int64_t{PartGroup::threads} * kVec) f(column);
  }
  int64_t row, start, begin, end;  // start: of the row; begin, end: columns
};

template <class T, int kVec>
__global__ void __launch_bounds__(PartGroup::threads)
    normalise_parts(RowNorm spec, Parts cut, dptr<const T> x, dptr<const T> gain, dptr<const T> bias, dptr<const T> mean, dptr<const T> shift,
                    dptr<const T> rstd, dptr<T> y) {
  const RowPart<kVec> part(spec, cut);
  const AffineColumns affine(spec, part.row);
  const T m = mean[part.row], r = rstd[part.row], offset = -shift[part.row] * r;
  part.each([&](int64_t column) {
    T values[kVec], g[kVec], b[kVec];
    load(x + (part.start + column), values);
    affine.get(gain, column, T(1), g);
    affine.get(bias, column, T(0), b);
    for (int k = 0; k < kVec; ++k) values[k] = std::fma(std::fma(values[k] - m, r, offset), g[k], b[k]);
    store<T, kVec>(y + (part.start + column), values);
  });
}

/// parts [rows][parts][RowGradient::sums]
template <class T, int kVec>
__global__ void __launch_bounds__(PartGroup::threads) sum_parts(RowNorm spec, Parts cut, dptr<const T> x, dptr<const T> gain, dptr<const T> mean,
                                                                dptr<const T> rstd, dptr<const T> dy, dptr<double> parts) {
  constexpr int n = RowGradient<T>::sums;
  const RowPart<kVec> part(spec, cut);
  const AffineColumns affine(spec, part.row);
  const RowGradient<T> gradient(spec, part.row, mean, rstd);
  double sums[n] = {};
  part.each([&](int64_t column) {
    T xs[kVec], dys[kVec], g[kVec], terms[n] = {};
    load(x + (part.start + column), xs);
    load(dy + (part.start + column), dys);
    affine.get(gain, column, T(1), g);
    for (int k = 0; k < kVec; ++k) gradient.add(column + k, xs[k], dys[k] * g[k], terms);
    for (int i = 0; i < n; ++i) sums[i] += static_cast<double>(terms[i]);
  });
  PartGroup::sum(sums);
  if (PartGroup::rank() != 0) return;
  for (int i = 0; i < n; ++i) parts[(part.row * cut.parts + blockIdx.x) * n + i] = sums[i];
}

template <class T, int kVec>
__global__ void __launch_bounds__(PartGroup::threads)
    gradient_of_parts(RowNorm spec, Parts cut, dptr<const T> x, dptr<const T> gain, dptr<const T> mean, dptr<const T> rstd, dptr<const T> dy,
                      dptr<const double> parts, dptr<T> dx, dptr<T> offsets) {
  constexpr int n = RowGradient<T>::sums;
  const RowPart<kVec> part(spec, cut);
  const AffineColumns affine(spec, part.row);
  RowGradient<T> gradient(spec, part.row, mean, rstd);
  double sums[n] = {};
  for (int64_t other = PartGroup::rank(); other < cut.parts; other += PartGroup::threads)
    for (int i = 0; i < n; ++i) sums[i] += parts[(part.row * cut.parts + other) * n + i];
  PartGroup::sum(sums);
  gradient.set(sums);
  if (offsets != nullptr && blockIdx.x == 0 && PartGroup::rank() == 0) offsets[part.row] = gradient.offset;
  if (dx == nullptr) return;
  part.each([&](int64_t column) {
    T xs[kVec], dys[kVec], g[kVec], out[kVec];
    load(x + (part.start + column), xs);
    load(dy + (part.start + column), dys);
    affine.get(gain, column, T(1), g);
    for (int k = 0; k < kVec; ++k) out[k] = gradient.dx(column + k, gradient.xhat(xs[k]), dys[k], g[k]);
    store<T, kVec>(dx + (part.start + column), out);
  });
}

// The host's side.

Parts cut_of(const RowNorm& spec) { return parts_of(spec.rows, spec.width, int64_t{16} * PartGroup::threads, 16); }

template <class Kernel, class... A>
void run(const Op& op, const RowNorm& spec, bool packs, Kernel* packed, Kernel* single, A... arguments) {
  const Parts cut = cut_of(spec);
  const dim3 grid(static_cast<unsigned>(cut.parts), static_cast<unsigned>(spec.rows));
  launch(op, packs ? packed : single, grid, PartGroup::threads, 0, stream(), spec, cut, arguments...);
}

}  // namespace

bool few_long_rows(const RowNorm& spec) {
  constexpr int64_t few = 128, longest = 32767;  // a block goes over more for longer than two more launches take
  return spec.rows < few && spec.width > longest && spec.centre && measured_width(spec) == spec.width;
}

template <class T>
void row_norm_forward_in_parts(const Op& op, const RowNorm& spec, bool packs, const T* x, const T* gain, const T* bias, T* y, T* mean, T* rstd) {
  const Scratch<T> var(op, spec.rows);
  T* const shift = mean + spec.rows;
  channel_statistics({.batch = 1, .channels = spec.rows, .space = spec.width, .eps = spec.eps}, x, mean, shift, var.data(), rstd);
  run(op.at("normalise_parts"), spec, packs, normalise_parts<T, Pack<T>::size>, normalise_parts<T, 1>, x, gain, bias, mean, shift, rstd, y);
}

template <class T>
void row_norm_dx_in_parts(const Op& op, const RowNorm& spec, bool packs, const T* x, const T* gain, const T* mean, const T* rstd, const T* dy, T* dx,
                          T* offsets) {
  const Scratch<double> parts(op, spec.rows * cut_of(spec).parts * RowGradient<T>::sums);
  run(op.at("sum_parts"), spec, packs, sum_parts<T, Pack<T>::size>, sum_parts<T, 1>, x, gain, mean, rstd, dy, parts.data());
  run(op.at("gradient_of_parts"), spec, packs, gradient_of_parts<T, Pack<T>::size>, gradient_of_parts<T, 1>, x, gain, mean, rstd, dy, parts.data(),
      dx, offsets);
}

#define LAMINA_ROW_NORM_PARTS(T)                                                                                      \
  template void row_norm_forward_in_parts(const Op&, const RowNorm&, bool, const T*, const T*, const T*, T*, T*, T*); \
  template void row_norm_dx_in_parts(const Op&, const RowNorm&, bool, const T*, const T*, const T*, const T*, const T*, T*, T*);
LAMINA_ROW_NORM_PARTS(float)
LAMINA_ROW_NORM_PARTS(double)
#undef LAMINA_ROW_NORM_PARTS

}  // namespace lamina::kernels::cuda
