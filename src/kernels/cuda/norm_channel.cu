// Channel normaliser (batch norm): statistics over batch and space in one pass over x, normalisation, and the backward. Squares are summed in double
// about each channel's first value; for f64, which has no wider type, once more about the mean. So no offset and no f32 value is too large.

#include <utility>

#include "kernels/cuda/device/channel.cuh"
#include "kernels/cuda/device/moments.cuh"
#include "kernels/cuda/device/sheet.cuh"
#include "kernels/cuda/norm.h"

namespace lamina::kernels::cuda {

namespace {

struct Counts {
  explicit Counts(const ChannelNorm& spec) : count(static_cast<double>(spec.batch * spec.space)), freedom(count - (spec.unbiased ? 1 : 0)) {}
  double count, freedom;
};

/// The pass of the statistics: sums of x and its square about an origin, which is the channel's first value or, once there is one, its mean.
template <class T>
struct Moments {
  static constexpr int sums = 2;
  using Channel = double;  // the origin
  __device__ double channel(int64_t c) const {
    const T value = about_mean ? T(mean[c]) : x[c * spec.space];
    return value - value == T(0) ? static_cast<double>(value) : 0;  // an infinite one would hide those of the others
  }
  template <int kVec>
  __device__ void add(const double (&origin)[kVec], int64_t at, double (&totals)[kVec][sums]) const {
    T values[kVec];
    load(x + at, values);
    for (int k = 0; k < kVec; ++k) {
      const double d = static_cast<double>(values[k]) - origin[k];
      totals[k][0] += d;
      totals[k][1] = std::fma(d, d, totals[k][1]);
    }
  }
  __device__ void finish(int64_t c, const double (&totals)[sums]) const {
    const double origin = channel(c), residual = totals[0] / counts.count;
    const T rounded = static_cast<T>(origin + residual);
    mean[c] = rounded;
    shift[c] = static_cast<T>(origin - static_cast<double>(rounded) + residual);
    rstd[c] = 1;
    if (!spec.divide) return;
    double squares = totals[1] - residual * totals[0];
    if (squares < 0) squares = 0;  // rounding; a NaN stays
    const double variance = squares / counts.freedom;
    var[c] = static_cast<T>(variance);
    rstd[c] = inverse<T>(std::sqrt(variance + spec.eps));
  }

  ChannelNorm spec;
  Counts counts;
  bool about_mean;
  dptr<const T> x;
  dptr<T> mean, shift, var, rstd;
};

/// The same where squares are of no use: a block takes a channel. Those whose variance is sound stay as they are.
__global__ void __launch_bounds__(channel_threads) rescue_channels(Moments<double> m, ChannelCut cut) {
  using Group = BlockGroup<channel_threads>;
  const int64_t c = blockIdx.x;
  if (trusted<double>(m.var[c], m.spec.eps)) return;
  const ScaledMoments scaled = scaled_moments<Group>(true, m.counts.count, m.counts.freedom, [&](auto f) {
    ChannelWalk walk(cut, c, Group::rank(), Group::threads);
    for (int64_t element = Group::rank(); element < cut.rows * cut.space; element += Group::threads, walk.next()) f(double(m.x[walk.at()]));
  });
  if (Group::rank() != 0) return;
  const RowStatistics<double> s = scaled.statistics<double>(m.spec.eps);
  m.mean[c] = s.mean, m.shift[c] = s.shift, m.rstd[c] = s.rstd;
  m.var[c] = scaled.var * scaled.scale * scaled.scale;
}

template <class T>
__global__ void __launch_bounds__(channel_threads) rstd_of_variances(int64_t channels, double eps, dptr<const T> var, dptr<T> rstd) {
  const int64_t c = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (c < channels) rstd[c] = var == nullptr ? T(1) : static_cast<T>(1 / std::sqrt(static_cast<double>(var[c]) + eps));
}

// y = (x - mean) scale + constant.
template <class T, int kVec>
__global__ void __launch_bounds__(sheet_threads)
    normalised(int64_t rows, int64_t width, int64_t space, dptr<const T> x, dptr<const T> mean, dptr<const T> shift, dptr<const T> rstd,
               dptr<const T> gain, dptr<const T> bias, dptr<T> y) {
  const int64_t column = sheet_pack() * kVec;
  if (column >= width) return;
  int64_t channels[kVec];
  channels_of(column, space, channels);
  T m[kVec], scale[kVec], constant[kVec];
  for (int k = 0; k < kVec; ++k) {
    const int64_t c = channels[k];
    m[k] = mean[c];
    scale[k] = gain != nullptr ? gain[c] * rstd[c] : T(rstd[c]);
    constant[k] = bias != nullptr ? T(bias[c]) : T(0);
    if (shift != nullptr) constant[k] -= shift[c] * scale[k];
  }
#pragma unroll 2
  for (int64_t row = sheet_row(); row < rows; row += sheet_rows_at_once()) {
    T values[kVec];
    load(x + (row * width + column), values);
    for (int k = 0; k < kVec; ++k) values[k] = std::fma(values[k] - m[k], scale[k], constant[k]);
    store<T, kVec>(y + (row * width + column), values);
  }
}

/// The sums of the backward: of dy, dy d and d, with d = (x - mean) rstd, whose own mean is what rounding the mean lost. From them come dgain and
/// dbias, and what dx needs.
template <class T>
struct Gradients {
  static constexpr int sums = 3;
  struct Channel {
    T mean, rstd;
  };
  __device__ Channel channel(int64_t c) const { return {mean[c], rstd[c]}; }
  template <int kVec>
  __device__ void add(const Channel (&of)[kVec], int64_t at, double (&totals)[kVec][sums]) const {
    T xs[kVec], dys[kVec];
    load(x + at, xs);
    load(dy + at, dys);
    for (int k = 0; k < kVec; ++k) {
      const double d = static_cast<double>((xs[k] - of[k].mean) * of[k].rstd), g = static_cast<double>(dys[k]);
      totals[k][0] += g;
      totals[k][1] = std::fma(g, d, totals[k][1]);
      totals[k][2] += d;
    }
  }
  __device__ void finish(int64_t c, const double (&totals)[sums]) const {
    const double offset = given ? 0 : totals[2] / counts.count, product = totals[1] - offset * totals[0];
    const double product_mean = spec.divide ? product / counts.freedom : 0;
    if (!given) {
      gain_mean[c] = static_cast<T>(product_mean);
      constant[c] = static_cast<T>(offset * product_mean - totals[0] / counts.count);
    }
    if (dbias != nullptr) dbias[c] = static_cast<T>(totals[0]);
    if (dgain != nullptr) dgain[c] = static_cast<T>(product);
  }

  ChannelNorm spec;
  Counts counts;
  bool given;
  dptr<const T> x, mean, rstd, dy;
  dptr<T> gain_mean, constant, dgain, dbias;
};

/// The sums of dy alone, which is all that centring needs.
template <class T>
struct CentringGradients {
  static constexpr int sums = 1;
  struct Channel {};
  __device__ Channel channel(int64_t) const { return {}; }
  template <int kVec>
  __device__ void add(const Channel (&)[kVec], int64_t at, double (&totals)[kVec][sums]) const {
    T dys[kVec];
    load(dy + at, dys);
    for (int k = 0; k < kVec; ++k) totals[k][0] += static_cast<double>(dys[k]);
  }
  __device__ void finish(int64_t c, const double (&totals)[sums]) const {
    if (constant != nullptr) constant[c] = static_cast<T>(-totals[0] / count);
    if (dbias != nullptr) dbias[c] = static_cast<T>(totals[0]);
  }

  double count;
  dptr<const T> dy;
  dptr<T> constant, dbias;
};

// dx = scale (dy + constant - d gain_mean), scale = gain rstd; the unbiased variance divides its sum by count - 1, and so does its gradient. Null
// gain_mean or constant are 0.
template <class T, int kVec>
__global__ void __launch_bounds__(sheet_threads)
    input_gradient(int64_t rows, int64_t width, int64_t space, dptr<const T> x, dptr<const T> gain, dptr<const T> mean, dptr<const T> rstd,
                   dptr<const T> constant, dptr<const T> gain_mean, dptr<const T> dy, dptr<T> dx) {
  const int64_t column = sheet_pack() * kVec;
  if (column >= width) return;
  int64_t channels[kVec];
  channels_of(column, space, channels);
  T m[kVec] = {}, r[kVec] = {}, scale[kVec], add[kVec] = {}, times[kVec] = {};
  const bool divided = gain_mean != nullptr;
  for (int k = 0; k < kVec; ++k) {
    const int64_t c = channels[k];
    r[k] = rstd[c];
    scale[k] = gain != nullptr ? gain[c] * r[k] : r[k];
    if (constant != nullptr) add[k] = constant[c];
    if (divided) m[k] = mean[c], times[k] = gain_mean[c];
  }
#pragma unroll 2
  for (int64_t row = sheet_row(); row < rows; row += sheet_rows_at_once()) {
    const int64_t at = row * width + column;
    T values[kVec], xs[kVec] = {};
    load(dy + at, values);
    if (divided) load(x + at, xs);
    for (int k = 0; k < kVec; ++k) {
      const T centred = values[k] + add[k];
      values[k] = scale[k] * (divided ? std::fma(-((xs[k] - m[k]) * r[k]), times[k], centred) : centred);
    }
    store<T, kVec>(dx + at, values);
  }
}

bool empty(const ChannelNorm& spec) { return spec.batch == 0 || spec.channels == 0 || spec.space == 0; }

// A single channel is one run, whatever the batch.
ChannelNorm flat(ChannelNorm spec) {
  if (spec.channels == 1) spec.space *= std::exchange(spec.batch, 1);
  return spec;
}

Op named(const char* name, const ChannelNorm& spec) { return Op(name, {{"batch", spec.batch}, {"channels", spec.channels}, {"space", spec.space}}); }

// Launches the kernel that fits, of those for packs and for single elements.
template <class T, class Kernel, class... A>
void run_sheet(const Op& op, const ChannelNorm& spec, bool aligned, Kernel* packed, Kernel* single, A... arguments) {
  const int64_t width = spec.channels * spec.space;
  const bool packs = aligned && packs_fit<T>(nullptr, width);
  const Sheet sheet(spec.batch, packs ? width / Pack<T>::size : width);
  launch(op, packs ? packed : single, sheet.grid, sheet.block, 0, stream(), spec.batch, width, spec.space, arguments...);
}

}  // namespace

template <class T>
void channel_statistics(const ChannelNorm& given, const T* x, T* mean, T* shift, T* var, T* rstd) {
  const Op op = named("channel_statistics", given);
  if (empty(given)) {
    for (T* values : {mean, shift, given.divide ? var : nullptr, rstd}) zero(op, values, given.channels);
    return;
  }
  const ChannelNorm spec = flat(given);
  Moments<T> moments{spec, Counts(spec), false, x, mean, shift, var, rstd};
  run_pass<T>(op, spec, packs_fit(x), moments);
  if constexpr (sizeof(T) == 8) {
    moments.about_mean = true;
    run_pass<T>(op, spec, packs_fit(x), moments);
    if (spec.divide) {
      const ChannelCut all{spec.channels, spec.space, spec.batch, spec.channels * spec.space, 1, 0, 0, false};
      launch(op.at("rescue_channels"), rescue_channels, blocks_for(spec.channels, 1, INT32_MAX), channel_threads, 0, stream(), moments, all);
    }
  }
}

template <class T>
void channel_rstd(const ChannelNorm& spec, const T* var, T* rstd) {
  const T* const variances = spec.divide ? var : nullptr;
  launch(named("channel_rstd", spec), rstd_of_variances<T>, blocks_for(spec.channels, channel_threads, INT32_MAX), channel_threads, 0, stream(),
         spec.channels, spec.eps, variances, rstd);
}

template <class T>
void channel_forward(const ChannelNorm& given, const T* x, const T* mean, const T* shift, const T* rstd, const T* gain, const T* bias, T* y) {
  if (empty(given)) return;
  const ChannelNorm spec = flat(given);
  run_sheet<T>(named("channel_forward", given), spec, packs_fit(x) && packs_fit(y), normalised<T, Pack<T>::size>, normalised<T, 1>, x, mean, shift,
               rstd, gain, bias, y);
}

template <class T>
void channel_backward(const ChannelNorm& given, bool given_statistics, const T* x, const T* gain, const T* mean, const T* rstd, const T* dy, T* dx,
                      T* dgain, T* dbias) {
  const Op op = named("channel_backward", given);
  if (empty(given)) {
    zero(op, dgain, given.channels);
    zero(op, dbias, given.channels);
    return;
  }
  const ChannelNorm spec = flat(given);
  const Counts counts(spec);
  const bool centred = dx && !given_statistics, divided = centred && spec.divide;
  const Scratch<T> arrays(op, given_statistics ? 0 : 2 * spec.channels);
  T *const constant = arrays.data(), *const gain_mean = constant ? constant + spec.channels : nullptr;
  const bool aligned = packs_fit(dy) && packs_fit(x);
  if (dgain || divided)
    run_pass<T>(op, spec, aligned, Gradients<T>{spec, counts, given_statistics, x, mean, rstd, dy, gain_mean, constant, dgain, dbias});
  else if (dbias || centred)
    run_pass<T>(op, spec, aligned, CentringGradients<T>{counts.count, dy, constant, dbias});
  if (!dx) return;
  const T *const add = constant, *const times = divided ? gain_mean : nullptr;
  run_sheet<T>(op.at("input_gradient"), spec, aligned && packs_fit(dx), input_gradient<T, Pack<T>::size>, input_gradient<T, 1>, x, gain, mean, rstd,
               add, times, dy, dx);
}

#define LAMINA_CHANNEL_NORM(T)                                                                                       \
  template void channel_statistics(const ChannelNorm&, const T*, T*, T*, T*, T*);                                    \
  template void channel_rstd(const ChannelNorm&, const T*, T*);                                                      \
  template void channel_forward(const ChannelNorm&, const T*, const T*, const T*, const T*, const T*, const T*, T*); \
  template void channel_backward(const ChannelNorm&, bool, const T*, const T*, const T*, const T*, const T*, T*, T*, T*);
LAMINA_CHANNEL_NORM(float)
LAMINA_CHANNEL_NORM(double)
#undef LAMINA_CHANNEL_NORM

}  // namespace lamina::kernels::cuda
