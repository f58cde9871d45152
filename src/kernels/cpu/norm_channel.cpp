// Channel normaliser (batch norm): statistics over batch and space, in two passes, and its backward.
//
// All sums have one shape. The channels are cut into blocks and the batch into groups, by the problem's sizes alone; a block's sums are formed
// group by group and added in order, so that every thread count gives the same bits. What is written goes out in memory order: stores that jump
// from row to row cost three times as much beyond the cache.

#include <lamina/core/parallel.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/cpu/norm_parts.h"
#include "kernels/cpu/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/norm_channel.cpp"
#include <hwy/foreach_target.h>

#include "kernels/cpu/simd.h"
#include "kernels/cpu/sums.h"

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

// Calls f(element offset, at, channel(array)) for every vector, rows or planes in memory order, on all threads; the arrays are indexed by channel.
template <class T, class F>
void for_each_element(const ChannelNorm& spec, F f) {
  const int64_t runs = spec.space == 1 ? spec.batch : spec.batch * spec.channels, length = spec.space == 1 ? spec.channels : spec.space;
  parallel_for(runs, std::max<int64_t>(1, parallel_elements / length), [&](int64_t first, int64_t last) {
    for (int64_t run = first; run < last; ++run) {
      const int64_t start = run * length, c = run % spec.channels;
      if (spec.space == 1)
        for_each_vector<T>(length, [&](auto at) HWY_ATTR { f(start, at, [&](const T* v) HWY_ATTR { return at.load(v); }); });
      else
        for_each_vector<T>(length, [&](auto at) HWY_ATTR { f(start, at, [&](const T* v) HWY_ATTR { return set(v[c]); }); });
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

// First pass: the mean, from sums about each channel's first value (keeps them small at a large offset, makes constant channels exact).
template <class T>
void mean_sums(const ChannelNorm& spec, const Piece& p, const T* x, double* totals) {
  HWY_ALIGN T origin[max_block];
  for (int64_t c = 0; c < p.width; ++c) origin[c] = x[offset_of(spec, 0, p.c + c)];
  piece_sums<T, 1>(
      spec, p, [&](int64_t start, auto at, auto channel) HWY_ATTR { return Terms<T, 1>{{hn::Sub(at.load(x + start), channel(origin))}}; }, totals);
}

template <class T>
void finish_mean(const ChannelNorm& spec, const Piece& p, const T* x, const double* totals, T* mean, T* shift) {
  const double count = static_cast<double>(spec.batch * spec.space);
  for (int64_t c = p.c; c < p.c + p.width; ++c) {
    const double exact = static_cast<double>(x[offset_of(spec, 0, c)]) + totals[c - p.c] / count;
    mean[c] = static_cast<T>(exact);
    shift[c] = static_cast<T>(exact - static_cast<double>(mean[c]));
  }
}

// Second pass: squares about that mean, and what its rounding left over.
template <class T>
void square_sums(const ChannelNorm& spec, const Piece& p, const T* x, const T* mean, double* totals) {
  piece_sums<T, 2>(
      spec, p,
      [&](int64_t start, auto at, auto channel) HWY_ATTR {
        const Vec<T> d = hn::Sub(at.load(x + start), channel(mean + p.c));
        return Terms<T, 2>{{d, hn::Mul(d, d)}};
      },
      totals);
}

template <class T>
void finish_var(const ChannelNorm& spec, const Piece& p, const T* x, const double* totals, T* mean, T* shift, T* var, T* rstd) {
  const double count = static_cast<double>(spec.batch * spec.space), freedom = count - (spec.unbiased ? 1 : 0);
  for (int64_t i = 0; i < p.width; ++i) {
    const int64_t c = p.c + i;
    const double residual = totals[i] / count;
    const double squares = totals[p.stride + i] - residual * totals[i];
    var[c] = static_cast<T>((squares < 0 ? 0 : squares) / freedom);
    if (!trustworthy<T>(static_cast<double>(var[c]), spec.eps)) {
      const auto each = [&](auto&& f) {
        for (int64_t n = 0; n < spec.batch; ++n)
          for (int64_t j = 0; j < spec.space; ++j) f(x[offset_of(spec, n, c) + j]);
      };
      double scaled_var = 0;
      const Statistics<T> s = scaled_statistics<T>(true, spec.eps, count, freedom, each, &scaled_var);
      mean[c] = s.mean, shift[c] = s.shift, rstd[c] = s.rstd, var[c] = static_cast<T>(scaled_var);
      continue;
    }
    const double exact = static_cast<double>(mean[c]) + residual;
    mean[c] = static_cast<T>(exact);
    shift[c] = static_cast<T>(exact - static_cast<double>(mean[c]));
    rstd[c] = rstd_of<T>(static_cast<double>(var[c]), spec.eps);
  }
}

template <class T>
void statistics_of(const ChannelNorm& spec, const T* x, T* mean, T* shift, T* var, T* rstd) {
  const Cut cut(spec);
  const auto first = [&](const Piece& p, double* totals) { mean_sums(spec, p, x, totals); };
  const auto first_done = [&](const Piece& p, const double* totals) { finish_mean(spec, p, x, totals, mean, shift); };
  if (!spec.divide) {
    std::fill(rstd, rstd + spec.channels, T{1});
    return for_each_block<1>(spec, cut, first, first_done);
  }
  const auto second = [&](const Piece& p, double* totals) { square_sums(spec, p, x, mean, totals); };
  const auto second_done = [&](const Piece& p, const double* totals) { finish_var(spec, p, x, totals, mean, shift, var, rstd); };
  if (cut.groups == 1) {
    parallel_for(cut.blocks, std::max<int64_t>(1, parallel_elements / (cut.block * spec.batch * spec.space)), [&](int64_t begin, int64_t end) {
      double totals[2 * max_block];
      for (int64_t b = begin; b < end; ++b) {
        const Piece p = piece(spec, cut, b, 0);
        first(p, totals), first_done(p, totals), second(p, totals), second_done(p, totals);
      }
    });
    return;
  }
  for_each_block<1>(spec, cut, first, first_done);
  for_each_block<2>(spec, cut, second, second_done);
}

// Per channel the sums of dy, dy d and d, with d = (x - mean) rstd; d's own mean is the mean's lost rounding.
template <class T>
void gradient_sums(const ChannelNorm& spec, const Piece& p, const T* x, const T* mean, const T* rstd, const T* dy, double* totals) {
  piece_sums<T, 3>(
      spec, p,
      [&](int64_t start, auto at, auto channel) HWY_ATTR {
        const Vec<T> dy_v = at.load(dy + start);
        const Vec<T> d = hn::Mul(hn::Sub(at.load(x + start), channel(mean + p.c)), channel(rstd + p.c));
        return Terms<T, 3>{{dy_v, hn::Mul(dy_v, d), d}};
      },
      totals);
}

// The sums of dy alone, which is all that centring needs.
template <class T>
void centring_sums(const ChannelNorm& spec, const Piece& p, const T* dy, double* totals) {
  piece_sums<T, 1>(
      spec, p, [&](int64_t start, auto at, auto) HWY_ATTR { return Terms<T, 1>{{at.load(dy + start)}}; }, totals);
}

// dx = scale (dy - bias_mean - x-hat gain_mean), scale = gain rstd, with the means of dy and dy x-hat over the channel and x-hat = d - offset. The
// unbiased variance divides its sum by count - 1, and so does its gradient. Without division there is no gain_mean.
template <class T>
void backward_of(const ChannelNorm& spec, bool given_statistics, const T* x, const T* gain, const T* mean, const T* rstd, const T* dy, T* dx,
                 T* dgain, T* dbias) {
  const Scratch<T> arrays(3 * spec.channels);
  T *const scale = arrays.data(), *const constant = scale + spec.channels, *const gain_mean = constant + spec.channels;
  const double count = static_cast<double>(spec.batch * spec.space), freedom = count - (spec.unbiased ? 1 : 0);
  const bool sums_needed = dgain || dbias || !given_statistics;
  if (sums_needed && !spec.divide && !dgain) {
    for_each_block<1>(
        spec, Cut(spec), [&](const Piece& p, double* totals) { centring_sums(spec, p, dy, totals); },
        [&](const Piece& p, const double* totals) {
          for (int64_t c = 0; c < p.width; ++c) {
            constant[p.c + c] = static_cast<T>(-totals[c] / count);
            if (dbias) dbias[p.c + c] = static_cast<T>(totals[c]);
          }
        });
  } else if (sums_needed) {
    for_each_block<3>(
        spec, Cut(spec), [&](const Piece& p, double* totals) { gradient_sums(spec, p, x, mean, rstd, dy, totals); },
        [&](const Piece& p, const double* totals) {
          for (int64_t c = 0; c < p.width; ++c) {
            const double dy_sum = totals[c], offset = given_statistics ? 0 : totals[2 * p.stride + c] / count;
            const double product = totals[p.stride + c] - offset * dy_sum, product_mean = spec.divide ? product / freedom : 0;
            gain_mean[p.c + c] = static_cast<T>(product_mean);
            constant[p.c + c] = static_cast<T>(offset * product_mean - dy_sum / count);
            if (dbias) dbias[p.c + c] = static_cast<T>(dy_sum);
            if (dgain) dgain[p.c + c] = static_cast<T>(product);
          }
        });
  }
  if (!dx) return;
  for (int64_t c = 0; c < spec.channels; ++c) scale[c] = gain ? gain[c] * rstd[c] : rstd[c];
  if (given_statistics) {
    for_each_element<T>(spec,
                        [&](int64_t start, auto at, auto channel) HWY_ATTR { at.store(dx + start, hn::Mul(channel(scale), at.load(dy + start))); });
    return;
  }
  if (!spec.divide) {
    for_each_element<T>(spec, [&](int64_t start, auto at, auto channel)
                                  HWY_ATTR { at.store(dx + start, hn::Mul(channel(scale), hn::Add(at.load(dy + start), channel(constant)))); });
    return;
  }
  for_each_element<T>(spec, [&](int64_t start, auto at, auto channel) HWY_ATTR {
    const Vec<T> d = hn::Mul(hn::Sub(at.load(x + start), channel(mean)), channel(rstd));
    const Vec<T> centred = hn::Add(at.load(dy + start), channel(constant));
    at.store(dx + start, hn::Mul(channel(scale), hn::NegMulAdd(d, channel(gain_mean), centred)));
  });
}

// A single channel is one run, whatever the batch.
ChannelNorm flat(ChannelNorm spec) {
  if (spec.channels == 1) spec.space *= std::exchange(spec.batch, 1);
  return spec;
}

bool empty(const ChannelNorm& spec) { return spec.batch == 0 || spec.channels == 0 || spec.space == 0; }

template <class T>
struct CpuChannelNorm final : ChannelNormPart<T> {
  void statistics(const ChannelNorm& spec, const T* x, T* mean, T* shift, T* var, T* rstd) const override {
    if (!empty(spec)) return statistics_of(flat(spec), x, mean, shift, var, rstd);
    std::fill(mean, mean + spec.channels, T{0});
    std::fill(shift, shift + spec.channels, T{0});
    if (spec.divide) std::fill(var, var + spec.channels, T{0});
    std::fill(rstd, rstd + spec.channels, T{0});
  }

  void forward(const ChannelNorm& spec, const T* x, const T* mean, const T* shift, const T* rstd, const T* gain, const T* bias, T* y) const override {
    if (empty(spec)) return;
    const Scratch<T> arrays(2 * spec.channels);
    T *const scale = arrays.data(), *const constant = scale + spec.channels;
    for (int64_t c = 0; c < spec.channels; ++c) {
      scale[c] = gain ? gain[c] * rstd[c] : rstd[c];
      constant[c] = (bias ? bias[c] : T{0}) - (shift ? shift[c] * scale[c] : T{0});
    }
    for_each_element<T>(flat(spec), [&](int64_t start, auto at, auto channel) HWY_ATTR {
      at.store(y + start, hn::MulAdd(hn::Sub(at.load(x + start), channel(mean)), channel(scale), channel(constant)));
    });
  }

  void backward(const ChannelNorm& spec, bool given_statistics, const T* x, const T* gain, const T* mean, const T* rstd, const T* dy, T* dx, T* dgain,
                T* dbias) const override {
    if (!empty(spec)) return backward_of(flat(spec), given_statistics, x, gain, mean, rstd, dy, dx, dgain, dbias);
    if (dgain) std::fill(dgain, dgain + spec.channels, T{0});
    if (dbias) std::fill(dbias, dbias + spec.channels, T{0});
  }
};

const ChannelNormPart<float>* channel_norm_f32() {
  static const CpuChannelNorm<float> part;
  return &part;
}
const ChannelNormPart<double>* channel_norm_f64() {
  static const CpuChannelNorm<double> part;
  return &part;
}

}  // namespace
}  // namespace lamina::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lamina::kernels {
HWY_EXPORT(channel_norm_f32);
HWY_EXPORT(channel_norm_f64);
template <>
const ChannelNormPart<float>& channel_norm_part() {
  return *HWY_DYNAMIC_DISPATCH(channel_norm_f32)();
}
template <>
const ChannelNormPart<double>& channel_norm_part() {
  return *HWY_DYNAMIC_DISPATCH(channel_norm_f64)();
}
}  // namespace lamina::kernels
#endif
