// How the channel normaliser walks its input: sums per channel, and passes over all elements.
//
// All sums have one shape. The channels are cut into blocks and the batch into groups, by the problem's sizes alone; a block's sums are formed
// group by group and added in order, so that every thread count gives the same bits. What is written goes out in memory order: stores that jump
// from row to row cost three times as much beyond the cache.
//
// Re-included once per instruction set, see simd.h.

#if defined(LAMINA_KERNELS_CPU_NORM_CHANNEL_WALK_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LAMINA_KERNELS_CPU_NORM_CHANNEL_WALK_H
#undef LAMINA_KERNELS_CPU_NORM_CHANNEL_WALK_H
#else
#define LAMINA_KERNELS_CPU_NORM_CHANNEL_WALK_H
#endif

#include <lamina/core/parallel.h>

#include <algorithm>
#include <type_traits>

#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/sums.h"
#include "kernels/norm.h"

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels::HWY_NAMESPACE {
namespace {

constexpr int64_t parallel_elements = 32768;  // less work than this stays on one thread
constexpr int64_t max_block = 1024;           // channels per block where they lie side by side

// How a problem is cut. Side by side ([batch, channels]): blocks of columns, groups of rows. Else ([batch, channels, space]): one channel is a
// block, and the batch is cut only where there are few channels to share out.
struct Cut {
  int64_t block, blocks, group, groups;

  explicit Cut(const ChannelNorm& spec) {
    constexpr int64_t rows = 128;
    block = spec.space > 1 ? 1 : std::min(spec.channels, spec.batch <= rows ? 256 : max_block);
    blocks = (spec.channels + block - 1) / block;
    group = spec.space == 1 ? rows : spec.channels >= 16 ? spec.batch : std::max<int64_t>(1, spec.batch * spec.channels / 16);
    groups = (spec.batch + group - 1) / group;
  }
};

// Whether one thread takes a block of channels through all passes: where a tensor fits in the threads' own caches, its rows cost nothing by being
// short, and what a thread has read once it reads fast the next time.
template <class T>
bool small(const ChannelNorm& spec, const Cut& cut) {
  return cut.groups == 1 && spec.batch * spec.channels * spec.space * static_cast<int64_t>(sizeof(T)) <= (int64_t{1} << 20);
}

// A block of channels [c, c + width) in the batch rows [n, n + count). Sum k of its i-th channel is kept at totals[k * stride + i].
struct Piece {
  int64_t c, width, n, count, stride;
};

Piece piece(const ChannelNorm& spec, const Cut& cut, int64_t block, int64_t group) {
  const int64_t c = block * cut.block, n = group * cut.group;
  return {c, std::min(cut.block, spec.channels - c), n, std::min(cut.group, spec.batch - n), cut.block};
}

int64_t offset_of(const ChannelNorm& spec, int64_t n, int64_t c) { return (n * spec.channels + c) * spec.space; }

// K sums per channel of a piece; f(element offset, at, channel(array)) gives the terms, where channel(array) is the vector of a per-channel array
// (indexed from the piece's first channel) that belongs to the elements `at`.
template <class T, int K, class F>
HWY_INLINE void piece_sums(const ChannelNorm& spec, const Piece& p, F f, double* totals) {
  for (int k = 0; k < K; ++k) std::fill(totals + k * p.stride, totals + k * p.stride + p.width, 0.0);
  if (spec.space > 1) {
    for (int64_t n = p.n; n < p.n + p.count; ++n) {
      const int64_t start = offset_of(spec, n, p.c);
      const auto s = sums<T, K>(spec.space, [&](auto at) HWY_ATTR { return f(start, at, [](const T* v) HWY_ATTR { return set(*v); }); });
      for (int k = 0; k < K; ++k) totals[k * p.stride] += s[static_cast<size_t>(k)];
    }
    return;
  }
  // Column sums: eight rows at a time, so that the accumulators are touched once per eight rows and each row is read in order.
  constexpr int64_t rows = 8, chunk = 128;
  HWY_ALIGN T acc[K][max_block];
  for (int64_t first = p.n; first < p.n + p.count; first += chunk) {
    const int64_t last = std::min(first + chunk, p.n + p.count);
    for (auto& sum : acc) std::fill(sum, sum + p.width, T{0});
    int64_t n = first;
    const auto add_rows = [&](auto row_count) HWY_ATTR {
      for_each_vector<T>(p.width, [&](auto at) HWY_ATTR {
        const auto channel = [&](const T* v) HWY_ATTR { return at.load(v); };
        Terms<T, K> total = f(offset_of(spec, n, p.c), at, channel);
        for (int64_t r = 1; r < row_count; ++r) {
          const Terms<T, K> terms = f(offset_of(spec, n + r, p.c), at, channel);
          for (int k = 0; k < K; ++k) total.term[k] = hn::Add(total.term[k], terms.term[k]);
        }
        for (int k = 0; k < K; ++k) at.store(acc[k], hn::Add(at.load(acc[k]), total.term[k]));
      });
    };
    for (; n + rows <= last; n += rows) add_rows(std::integral_constant<int64_t, rows>());
    for (; n < last; ++n) add_rows(std::integral_constant<int64_t, 1>());
    for (int k = 0; k < K; ++k)
      for (int64_t c = 0; c < p.width; ++c) totals[k * p.stride + c] += static_cast<double>(acc[k][c]);
  }
}

// Calls f(channel)(element offset, at) for every vector of rows or planes [first, last) and, side by side, channels from p.c on: f loads what belongs
// to a channel, and what it returns is called for one element vector or for those of several rows.
template <int kRows, class T, class F>
HWY_INLINE void for_each_in_rows(const ChannelNorm& spec, int64_t row, int64_t c, int64_t width, F& f) {
  for_each_vector<T>(width, [&](auto at) HWY_ATTR {
    const auto apply = f([&](const T* v) HWY_ATTR { return at.load(v + c); });
    for (int64_t r = 0; r < kRows; ++r) apply((row + r) * spec.channels + c, at);
  });
}

template <class T, class F>
HWY_INLINE void for_each_in_run(const ChannelNorm& spec, int64_t n, int64_t c, F& f) {
  const auto apply = f([&](const T* v) HWY_ATTR { return set(v[c]); });
  const int64_t start = offset_of(spec, n, c);
  for_each_vector<T>(spec.space, [&](auto at) HWY_ATTR { apply(start, at); });
}

// All elements of a piece, where it and what else is at work on it fit in a cache.
template <class T, class F>
void for_each_in_piece(const ChannelNorm& spec, const Piece& p, F f) {
  const int64_t end = p.n + p.count;
  if (spec.space > 1) {
    for (int64_t n = p.n; n < end; ++n) for_each_in_run<T>(spec, n, p.c, f);
    return;
  }
  int64_t n = p.n;
  for (; n + 4 <= end; n += 4) for_each_in_rows<4, T>(spec, n, p.c, p.width, f);
  for (; n < end; ++n) for_each_in_rows<1, T>(spec, n, p.c, p.width, f);
}

// All elements in memory order, on all threads.
template <class T, class F>
void for_each_element(const ChannelNorm& spec, F f) {
  const int64_t runs = spec.space == 1 ? spec.batch : spec.batch * spec.channels, length = spec.space == 1 ? spec.channels : spec.space;
  parallel_for(runs, std::max<int64_t>(1, parallel_elements / length), [&](int64_t first, int64_t last) {
    for (int64_t run = first; run < last; ++run) {
      if (spec.space == 1)
        for_each_in_rows<1, T>(spec, run, 0, length, f);
      else
        for_each_in_run<T>(spec, run / spec.channels, run % spec.channels, f);
    }
  });
}

// One pass over everything: sum(piece, totals) forms the K sums of a piece, finish(piece, totals) uses those of the whole batch.
template <int K, class Sum, class Finish>
void for_each_block(const ChannelNorm& spec, const Cut& cut, Sum sum, Finish finish) {
  const int64_t piece_elements = cut.block * cut.group * spec.space, size = K * cut.block;
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
