// How the channel normaliser walks its input: sums per channel, and passes over all elements.
//
// All sums have one shape. The channels are cut into blocks and the batch into groups, by the problem's sizes alone; a block's sums are formed
// group by group and added in order, so that every thread count gives the same bits. Beyond the caches everything is read and written in memory
// order: stores that jump from row to row cost three times as much there.
//
// Sums may be shared out by channels, results are by rows: threads that write other channels of the same rows ask for each other's lines (and
// fetch more of them ahead), which costs a third of a pass where cores share a cache, and twice its time where they do not.
//
// Where channels lie side by side, a row of 1000 does not begin at a vector's boundary, and vectors that straddle cache lines cost a fifth of the
// time of a norm. So rows that begin equally far from one go together, and the elements before it are a partial vector.
//
// Re-included once per instruction set, see simd.h.

#if defined(LAMINA_KERNELS_CPU_NORM_CHANNEL_WALK_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LAMINA_KERNELS_CPU_NORM_CHANNEL_WALK_H
#undef LAMINA_KERNELS_CPU_NORM_CHANNEL_WALK_H
#else
#define LAMINA_KERNELS_CPU_NORM_CHANNEL_WALK_H
#endif

#include <hwy/cache_control.h>
#include <lamina/core/parallel.h>

#include <algorithm>
#include <type_traits>

#include "kernels/cpu/norm_parts.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/sums.h"
#include "kernels/norm.h"

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels::HWY_NAMESPACE {
namespace {

constexpr int64_t parallel_elements = 32768;  // less work than this stays on one thread
constexpr int64_t max_block = 1024;           // channels per block where they lie side by side

// How a problem is cut. Side by side ([batch, channels]): blocks of columns, groups of rows. Else ([batch, channels, space]): small tensors by
// channel, and by batch only where there are few channels to share out; others in memory order, as many channels at a time as there are.
struct Cut {
  int64_t block, blocks, group, groups;
  bool small;  // the tensor fits in the threads' own caches: a thread reads fast what it has read before, and short rows cost nothing

  Cut(const ChannelNorm& spec, int64_t element_bytes) {
    constexpr int64_t rows = 128, units = 16, even = 64;
    small = spec.batch * spec.channels * spec.space * element_bytes <= (int64_t{1} << 20);
    if (spec.space == 1) {
      block = std::min(spec.channels, spec.batch <= rows ? 256 : max_block);
      group = rows;
    } else if (small) {
      block = 1;
      group = spec.channels >= units ? spec.batch : std::max<int64_t>(1, spec.batch * spec.channels / units);
    } else {
      group = std::max<int64_t>(1, spec.batch / units);
      block = std::clamp<int64_t>(spec.channels * spec.batch / units, 1, std::min(spec.channels, max_block));
    }
    blocks = (spec.channels + block - 1) / block;
    // About equal blocks: threads take neighbours, and one that is a sliver would leave its thread without work.
    if (block > even) block = std::min(block, ((spec.channels + blocks - 1) / blocks + even - 1) / even * even);
    blocks = (spec.channels + block - 1) / block;
    groups = (spec.batch + group - 1) / group;
  }

  // Whether one thread takes a channel through all passes.
  bool one_thread_a_channel() const { return small && groups == 1 && block == 1; }
};

// A block of channels [c, c + width) in the batch rows [n, n + count). Sum k of its i-th channel is kept at totals[k * stride + i].
struct Piece {
  int64_t c, width, n, count, stride;
};

Piece piece(const ChannelNorm& spec, const Cut& cut, int64_t block, int64_t group) {
  const int64_t c = block * cut.block, n = group * cut.group;
  return {c, std::min(cut.block, spec.channels - c), n, std::min(cut.group, spec.batch - n), cut.block};
}

int64_t offset_of(const ChannelNorm& spec, int64_t n, int64_t c) { return (n * spec.channels + c) * spec.space; }

// Rows [first, last) from channel c on, kRows at a time that begin equally far from an aligned vector, if there are enough of them and they are not
// so short that two partial vectors cost more than vectors that straddle lines:
// f(kRows or 1, first row, step to the next, elements before the first aligned vector).
template <class T, int64_t kRows, class F>
HWY_INLINE void for_each_rows(const ChannelNorm& spec, int64_t first, int64_t last, int64_t c, F f) {
  const int64_t period = row_period<T>(spec.channels), step = spec.channels >= 4 * lanes<T>() && last - first >= 4 * period ? period : 1;
  for (int64_t n = first; n < first + step; ++n) {
    const int64_t head = step == period ? to_aligned<T>(n * spec.channels + c) : 0;
    int64_t row = n;
    for (; row + (kRows - 1) * step < last; row += kRows * step) f(std::integral_constant<int64_t, kRows>(), row, step, head);
    for (; row < last; row += step) f(std::integral_constant<int64_t, 1>(), row, step, head);
  }
}

// K sums per channel of a piece; f(element offset, at, channel(array)) gives the terms, where channel(array) is the vector of a per-channel array
// (indexed from the piece's first channel) that belongs to the elements `at`.
template <class T, int K, class F>
HWY_INLINE void piece_sums(const ChannelNorm& spec, const Piece& p, F f, double* totals) {
  if (spec.space > 1) {
    for (int k = 0; k < K; ++k) std::fill(totals + k * p.stride, totals + k * p.stride + p.width, 0.0);
    for (int64_t n = p.n; n < p.n + p.count; ++n)
      for (int64_t i = 0; i < p.width; ++i) {
        const int64_t start = offset_of(spec, n, p.c + i);
        const auto s = sums<T, K>(spec.space, [&](auto at) HWY_ATTR { return f(start, at, [i](const T* v) HWY_ATTR { return set(v[i]); }); });
        for (int k = 0; k < K; ++k) totals[k * p.stride + i] += s[static_cast<size_t>(k)];
      }
    return;
  }
  // Column sums: eight rows at a time, so that the accumulators are touched once per eight rows and each row is read in order.
  constexpr int64_t rows = 8, chunk = 128;
  HWY_ALIGN T acc[K][max_block];
  for (int64_t first = p.n; first < p.n + p.count; first += chunk) {
    const int64_t last = std::min(first + chunk, p.n + p.count);
    for (auto& sum : acc) std::fill(sum, sum + p.width, T{0});
    for_each_rows<T, rows>(spec, first, last, p.c, [&](auto row_count, int64_t n, int64_t step, int64_t head) HWY_ATTR {
      for_each_vector_after<T>(head, p.width, [&](auto at) HWY_ATTR {
        const auto channel = [&](const T* v) HWY_ATTR { return at.load(v); };
        Terms<T, K> total = f(offset_of(spec, n, p.c), at, channel);
        for (int64_t r = 1; r < row_count; ++r) {
          const Terms<T, K> terms = f(offset_of(spec, n + r * step, p.c), at, channel);
          for (int k = 0; k < K; ++k) total.term[k] = hn::Add(total.term[k], terms.term[k]);
        }
        for (int k = 0; k < K; ++k) at.store(acc[k], hn::Add(at.load(acc[k]), total.term[k]));
      });
    });
    for (int k = 0; k < K; ++k)
      for (int64_t c = 0; c < p.width; ++c) totals[k * p.stride + c] = (first == p.n ? 0 : totals[k * p.stride + c]) + static_cast<double>(acc[k][c]);
  }
}

// Passes over elements take f(channel)(element offset, at): f loads what belongs to a channel, or to channels side by side, and what it returns is
// called for one vector of elements or for those of several rows. It writes with store_result.
template <class T, template <class> class Whole, class Count, class F>
HWY_INLINE void apply_to_rows(const ChannelNorm& spec, Count rows, int64_t row, int64_t step, int64_t head, F& f) {
  for_each_vector_after<T, Whole>(head, spec.channels, [&](auto at) HWY_ATTR {
    const auto apply = f([&](const T* v) HWY_ATTR { return at.load(v); });
    for (int64_t r = 0; r < rows; ++r) apply((row + r * step) * spec.channels, at);
  });
}

template <class T, template <class> class Whole, class F>
HWY_INLINE void apply_to_run(const ChannelNorm& spec, int64_t n, int64_t c, F& f) {
  const auto apply = f([&](const T* v) HWY_ATTR { return set(v[c]); });
  const int64_t start = offset_of(spec, n, c);
  for_each_vector_after<T, Whole>(to_aligned<T>(start), spec.space, [&](auto at) HWY_ATTR { apply(start, at); });
}

// All elements of a channel.
template <class T, class F>
void for_each_in_channel(const ChannelNorm& spec, int64_t c, F f) {
  for (int64_t n = 0; n < spec.batch; ++n) apply_to_run<T, WholeVector>(spec, n, c, f);
}

template <class T, template <class> class Whole, class F>
void for_each_in_order(const ChannelNorm& spec, F f) {
  const int64_t runs = spec.space == 1 ? spec.batch : spec.batch * spec.channels, length = spec.space == 1 ? spec.channels : spec.space;
  parallel_for(runs, std::max<int64_t>(1, parallel_elements / length), [&](int64_t first, int64_t last) {
    for (int64_t run = first; run < last; ++run) {
      if (spec.space == 1)
        apply_to_rows<T, Whole>(spec, std::integral_constant<int64_t, 1>(), run, 1, to_aligned<T>(run * length), f);
      else
        apply_to_run<T, Whole>(spec, run / spec.channels, run % spec.channels, f);
    }
    hwy::FlushStream();
  });
}

// All elements, by rows or runs, on all threads; `result` is what f writes. In cache many rows go together; beyond it stores that change between rows
// take twice the time, and everything is in memory order.
template <class T, class F>
void for_each_element(const ChannelNorm& spec, const Cut& cut, const T* result, F f) {
  if (cut.small && spec.space == 1)
    return parallel_for(spec.batch, std::max<int64_t>(1, parallel_elements / spec.channels), [&](int64_t first, int64_t last) {
      for_each_rows<T, 16>(spec, first, last, 0, [&](auto count, int64_t row, int64_t step, int64_t head) HWY_ATTR {
        apply_to_rows<T, WholeVector>(spec, count, row, step, head, f);
      });
    });
  streams(result, spec.batch * spec.channels * spec.space, spec.space == 1 ? spec.channels : spec.space)
      ? for_each_in_order<T, StreamedVector>(spec, f)
      : for_each_in_order<T, WholeVector>(spec, f);
}

// One pass over everything: sum(piece, totals) forms the K sums of a piece, finish(piece, totals) uses those of the whole batch.
template <int K, class Sum, class Finish>
void for_each_block(const ChannelNorm& spec, const Cut& cut, Sum sum, Finish finish) {
  const int64_t piece_elements = cut.block * cut.group * spec.space, size = K * cut.block;
  if (cut.groups == 1)
    return parallel_for(cut.blocks, std::max<int64_t>(1, parallel_elements / piece_elements), [&](int64_t first, int64_t last) {
      double totals[K * max_block];
      for (int64_t b = first; b < last; ++b) {
        const Piece p = piece(spec, cut, b, 0);
        sum(p, totals);
        finish(p, totals);
      }
    });
  const Scratch<double> parts(cut.blocks * cut.groups * size);
  parallel_for(cut.blocks * cut.groups, std::max<int64_t>(1, parallel_elements / piece_elements), [&](int64_t first, int64_t last) {
    for (int64_t u = first; u < last; ++u) sum(piece(spec, cut, u / cut.groups, u % cut.groups), parts.data() + u * size);
  });
  for (int64_t b = 0; b < cut.blocks; ++b) {
    double* const total = parts.data() + b * cut.groups * size;
    const Piece p = piece(spec, cut, b, 0);
    for (int64_t g = 1; g < cut.groups; ++g)
      for (int k = 0; k < K; ++k)
        for (int64_t c = 0; c < p.width; ++c) total[k * p.stride + c] += total[g * size + k * p.stride + c];
    finish(p, total);
  }
}

}  // namespace
}  // namespace lamina::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LAMINA_KERNELS_CPU_NORM_CHANNEL_WALK_H
