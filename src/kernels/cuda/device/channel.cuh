#pragma once
// Sums per channel over [batch, channels, space]. A pass says what is summed (add) and what is done with a channel's totals (finish). Where a
// channel's elements lie in runs of some length, blocks take runs; shorter ones are columns side by side. What one launch leaves in parts,
// finish_parts adds up, in an order that depends on the shape alone. Sums are in double.

#include <algorithm>

#include "kernels/cuda/device/row.cuh"
#include "kernels/norm.h"

namespace lamina::kernels::cuda {

constexpr int channel_threads = 256;

/// The work of a pass: [rows, width] = [batch, channels * space].
struct ChannelCut {
  int64_t channels, space, rows, width;
  int64_t parts, length;  // parts of a channel, each of so many rows, or, where blocks take runs, elements
  int across;             // packs of columns of a block: a power of two
  bool finished;          // the pass is done in one launch
};

/// The channels of kVec columns; space = 1 and narrow widths need no slow division.
template <int kVec>
__device__ void channels_of(int64_t column, int64_t space, int64_t (&channels)[kVec]) {
  if (space == 1) {
    for (int k = 0; k < kVec; ++k) channels[k] = column + k;
    return;
  }
  constexpr int64_t narrow = int64_t{1} << 32;
  int64_t channel =
      column < narrow && space < narrow ? static_cast<int64_t>(static_cast<uint32_t>(column) / static_cast<uint32_t>(space)) : column / space;
  int64_t inside = column - channel * space;
  for (int k = 0; k < kVec; ++k) {
    channels[k] = channel;
    if (++inside == space) {
      inside = 0;
      ++channel;
    }
  }
}

/// Blocks take columns: threads side by side, and below them others that share their columns. parts [parts][sums][width].
template <class Pass, int kVec>
__global__ void __launch_bounds__(channel_threads) sums_by_column(Pass pass, ChannelCut cut, dptr<double> parts) {
  constexpr int sums = Pass::sums;
  __shared__ shared_array<double, channel_threads * kVec * sums> totals;
  const int at = static_cast<int>(threadIdx.x), slices = channel_threads / cut.across, slice = at / cut.across;
  const int64_t part = blockIdx.x % cut.parts, column = (blockIdx.x / cut.parts * cut.across + at % cut.across) * kVec;
  const int64_t begin = part * cut.length, end = begin + cut.length < cut.rows ? begin + cut.length : cut.rows;
  const bool inside = column < cut.width;
  double mine[kVec][sums] = {};
  if (inside) {
    int64_t channels[kVec];
    channels_of(column, cut.space, channels);
    typename Pass::Channel channel[kVec];
    for (int k = 0; k < kVec; ++k) channel[k] = pass.channel(channels[k]);
#pragma unroll 4
    for (int64_t row = begin + slice; row < end; row += slices) pass.template add<kVec>(channel, row * cut.width + column, mine);
  }
  for (int k = 0; k < kVec; ++k)
    for (int i = 0; i < sums; ++i) totals[(k * sums + i) * channel_threads + at] = mine[k][i];
  __syncthreads();
  for (int half = slices / 2; half > 0; half /= 2) {
    if (slice < half)
      for (int j = 0; j < kVec * sums; ++j) totals[j * channel_threads + at] += totals[j * channel_threads + at + half * cut.across];
    __syncthreads();
  }
  if (slice != 0 || !inside) return;
  for (int k = 0; k < kVec; ++k) {
    for (int i = 0; i < sums; ++i) mine[k][i] = totals[(k * sums + i) * channel_threads + at];
    if (cut.finished)
      pass.finish(column + k, mine[k]);
    else
      for (int i = 0; i < sums; ++i) parts[(part * sums + i) * cut.width + column + k] = mine[k][i];
  }
}

/// Goes through a channel's elements in steps, without a division for each.
class ChannelWalk {
 public:
  __device__ ChannelWalk(const ChannelCut& cut, int64_t channel, int64_t element, int64_t step)
      : space_(cut.space),
        inside_(element % space_),
        at_(element / space_ * cut.width + channel * space_ + inside_),
        step_(step % space_),
        jump_(step / space_ * cut.width + step_),
        to_next_(cut.width - space_) {}
  __device__ int64_t at() const { return at_; }
  __device__ void next() {
    at_ += jump_;
    inside_ += step_;
    if (inside_ < space_) return;
    inside_ -= space_;
    at_ += to_next_;
  }

 private:
  int64_t space_, inside_, at_, step_, jump_, to_next_;
};

/// A block takes one part of one channel. parts [parts][sums][channels].
template <class Pass, int kVec>
__global__ void __launch_bounds__(channel_threads) sums_by_run(Pass pass, ChannelCut cut, dptr<double> parts) {
  using Group = BlockGroup<channel_threads>;
  constexpr int sums = Pass::sums;
  const int64_t elements = cut.rows * cut.space;
  for (int64_t unit = blockIdx.x; unit < cut.channels * cut.parts; unit += gridDim.x) {
    const int64_t c = unit / cut.parts, part = unit % cut.parts;
    const int64_t begin = part * cut.length, end = begin + cut.length < elements ? begin + cut.length : elements;
    typename Pass::Channel channel[kVec];
    for (int k = 0; k < kVec; ++k) channel[k] = pass.channel(c);
    double mine[kVec][sums] = {};
    const int64_t first = begin + int64_t{Group::rank()} * kVec;
    ChannelWalk walk(cut, c, first, Group::threads * kVec);
#pragma unroll 4
    for (int64_t element = first; element < end; element += Group::threads * kVec) {
      pass.template add<kVec>(channel, walk.at(), mine);
      walk.next();
    }
    for (int k = 1; k < kVec; ++k)
      for (int i = 0; i < sums; ++i) mine[0][i] += mine[k][i];
    Group::sum(mine[0]);
    if (Group::rank() != 0) continue;
    if (cut.finished)
      pass.finish(c, mine[0]);
    else
      for (int i = 0; i < sums; ++i) parts[(part * sums + i) * cut.channels + c] = mine[0][i];
  }
}

constexpr int finish_across = 32, finish_down = 8;  // channels of a block, and threads that share one's parts

/// The second launch. In each part a channel has `spread` sums of each kind, one after the other: parts [parts][sums][channels * spread].
template <class Pass>
__global__ void __launch_bounds__(finish_across* finish_down)
    finish_parts(Pass pass, int64_t channels, int64_t n, int64_t spread, dptr<const double> parts) {
  constexpr int sums = Pass::sums, threads = finish_across * finish_down;
  __shared__ shared_array<double, threads * sums> totals;
  const int64_t c = int64_t{blockIdx.x} * finish_across + threadIdx.x;
  double mine[sums] = {};
  if (c < channels) {
#pragma unroll 4
    for (int64_t term = threadIdx.y; term < n * spread; term += finish_down) {
      const int64_t part = spread == 1 ? term : term / spread;
      for (int i = 0; i < sums; ++i) mine[i] += parts[((part * sums + i) * channels + c) * spread + (term - part * spread)];
    }
  }
  const int at = static_cast<int>(threadIdx.y * finish_across + threadIdx.x);
  for (int i = 0; i < sums; ++i) totals[i * threads + at] = mine[i];
  __syncthreads();
  if (threadIdx.y != 0 || c >= channels) return;
  for (int slice = 1; slice < finish_down; ++slice)
    for (int i = 0; i < sums; ++i) mine[i] += totals[i * threads + slice * finish_across + at];
  pass.finish(c, mine);
}

// The host's side.

/// Runs of this length belong to blocks; shorter ones are columns.
constexpr int64_t shortest_run = 64;

inline ChannelCut channel_cut(const ChannelNorm& spec, int vec) {
  constexpr int64_t enough_blocks = 1024, most_parts = 512;  // that fill a GPU; that are soon added up
  ChannelCut cut{spec.channels, spec.space, spec.batch, spec.channels * spec.space, 1, 0, 0, false};
  int64_t units = spec.channels, size = spec.batch * spec.space, least = 4096;
  if (spec.space < shortest_run) {
    constexpr int64_t large = 1 << 22;  // elements of a problem that fills a GPU with wide blocks
    cut.across = vec == 1 || cut.rows * cut.width >= large ? 32 : 8;
    units = (cut.width / vec + cut.across - 1) / cut.across;
    size = cut.rows;
    least = int64_t{16} * channel_threads / cut.across;
  }
  const int64_t parts = std::max<int64_t>(1, std::min({enough_blocks / units, size / least, most_parts}));
  cut.length = (size + parts - 1) / parts;
  if (spec.space >= shortest_run) cut.length = (cut.length + vec - 1) / vec * vec;
  cut.parts = (size + cut.length - 1) / cut.length;
  cut.finished = cut.parts == 1 && (spec.space == 1 || spec.space >= shortest_run);
  return cut;
}

template <class Pass, int kVec>
void run_pass(const Op& op, const ChannelNorm& spec, const Pass& pass) {
  const ChannelCut cut = channel_cut(spec, kVec);
  const bool by_run = spec.space >= shortest_run;
  const int64_t spread = by_run ? 1 : spec.space;
  const Scratch<double> parts(op, cut.finished ? 0 : cut.parts * Pass::sums * spec.channels * spread);
  if (by_run) {
    launch(op.at("sums_by_run"), sums_by_run<Pass, kVec>, blocks_for(spec.channels * cut.parts, 1, INT32_MAX), channel_threads, 0, stream(), pass,
           cut, parts.data());
  } else {
    const int64_t tiles = (cut.width / kVec + cut.across - 1) / cut.across;
    launch(op.at("sums_by_column"), sums_by_column<Pass, kVec>, blocks_for(tiles * cut.parts, 1, INT32_MAX), channel_threads, 0, stream(), pass, cut,
           parts.data());
  }
  if (!cut.finished)
    launch(op.at("finish_parts"), finish_parts<Pass>, blocks_for(spec.channels, finish_across, INT32_MAX), dim3(finish_across, finish_down), 0,
           stream(), pass, spec.channels, cut.parts, spread, parts.data());
}

/// All of a pass, by packs if `aligned` and the shape allow it.
template <class T, class Pass>
void run_pass(const Op& op, const ChannelNorm& spec, bool aligned, const Pass& pass) {
  if (aligned && packs_fit<T>(nullptr, spec.space >= shortest_run ? spec.space : spec.channels * spec.space))
    run_pass<Pass, Pack<T>::size>(op, spec, pass);
  else
    run_pass<Pass, 1>(op, spec, pass);
}

}  // namespace lamina::kernels::cuda
