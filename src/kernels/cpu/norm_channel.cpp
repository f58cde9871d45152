// Channel normaliser (batch norm): statistics over batch and space in one pass (a second only where that one's origin was far off), and its
// backward.

#include <lamina/core/parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/cpu/norm_parts.h"
#include "kernels/cpu/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/norm_channel.cpp"
#include <hwy/foreach_target.h>

#include "kernels/cpu/norm_channel_walk.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/sums.h"

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels::HWY_NAMESPACE {
namespace {

// What sums are taken about, so that a large offset costs nothing and a constant channel is exact: a value near the mean, the mean of the channel's
// first entries.
template <class T>
void find_origins(const ChannelNorm& spec, const Piece& p, const T* x, T* origin) {
  if (spec.space > 1) {
    for (int64_t c = p.c; c < p.c + p.width; ++c) {
      const T* const run = x + offset_of(spec, 0, c);
      const Vec<T> first = set(run[0]);
      const int64_t n = std::min<int64_t>(spec.space, 1024);
      const auto s = sums<T, 1>(n, [&](auto at) HWY_ATTR { return Terms<T, 1>{{hn::Sub(at.load(run), first)}}; });
      origin[c] = run[0] + static_cast<T>(s[0] / static_cast<double>(n));
    }
    return;
  }
  const int64_t rows = std::min<int64_t>(spec.batch, 16);
  const Vec<T> share = set(T{1} / static_cast<T>(rows));
  for_each_vector<T>(p.width, [&](auto at) HWY_ATTR {
    const Vec<T> first = at.load(x + p.c);
    Vec<T> sum = zero<T>();
    for (int64_t n = 1; n < rows; ++n) sum = hn::Add(sum, hn::Sub(at.load(x + offset_of(spec, n, p.c)), first));
    at.store(origin + p.c, hn::MulAdd(sum, share, first));
  });
}

// Sums about the origins; of the squares too, if anything is divided.
template <class T>
void sums_about(const ChannelNorm& spec, const Piece& p, const T* x, const T* origin, double* totals) {
  if (!spec.divide)
    return piece_sums<T, 1>(
        spec, p, [&](int64_t start, auto at, auto channel) HWY_ATTR { return Terms<T, 1>{{hn::Sub(at.load(x + start), channel(origin + p.c))}}; },
        totals);
  piece_sums<T, 2>(
      spec, p,
      [&](int64_t start, auto at, auto channel) HWY_ATTR {
        const Vec<T> d = hn::Sub(at.load(x + start), channel(origin + p.c));
        return Terms<T, 2>{{d, hn::Mul(d, d)}};
      },
      totals);
}

// The arrays of one channel_statistics call.
template <class T>
struct ChannelStatistics {
  const ChannelNorm& spec;
  const T* x;
  T *mean, *shift, *var, *rstd;

  // From the sums about `origin`, which may be `mean`; they are used up. Whether an origin was further from its mean than the deviation, so that
  // digits were lost. Loops of one kind of work, so that they become vector code: a division a channel is not small beside 128 rows.
  bool finish(const Piece& p, const T* origin, double* totals) const {
    const double count = static_cast<double>(spec.batch * spec.space), by_count = 1 / count, by_freedom = 1 / (count - (spec.unbiased ? 1 : 0));
    double *const offset = totals, *const squares = totals + p.stride;
    int64_t far = 0;
    if (spec.divide) {
      for (int64_t i = 0; i < p.width; ++i) {
        const double mean_offset = offset[i] * by_count, about_origin = mean_offset * offset[i], about_mean = squares[i] - about_origin;
        far += about_origin > about_mean;
        squares[i] = (about_mean < 0 ? 0 : about_mean) * by_freedom;
        offset[i] = mean_offset;
      }
    } else {
      for (int64_t i = 0; i < p.width; ++i) offset[i] *= by_count;
    }
    for (int64_t i = 0; i < p.width; ++i) {
      const double exact = static_cast<double>(origin[p.c + i]) + offset[i];
      const T rounded = static_cast<T>(exact);
      mean[p.c + i] = rounded;
      shift[p.c + i] = static_cast<T>(exact - static_cast<double>(rounded));
    }
    if (!spec.divide) return false;
    const auto trusted = [&](T v) { return trustworthy<T>(static_cast<double>(v), spec.eps); };
    int64_t bad = 0;
    for (int64_t i = 0; i < p.width; ++i) {
      const T rounded = static_cast<T>(squares[i]);
      var[p.c + i] = rounded;
      rstd[p.c + i] = rstd_of<T>(static_cast<double>(rounded), spec.eps);
      bad += !trusted(rounded);
    }
    for (int64_t c = p.c; bad > 0 && c < p.c + p.width; ++c)
      if (!trusted(var[c])) scaled(c);
    return far > 0;
  }

  void scaled(int64_t c) const {
    const double count = static_cast<double>(spec.batch * spec.space), freedom = count - (spec.unbiased ? 1 : 0);
    const auto each = [&](auto&& f) {
      for (int64_t n = 0; n < spec.batch; ++n)
        for (int64_t j = 0; j < spec.space; ++j) f(x[offset_of(spec, n, c) + j]);
    };
    double scaled_var = 0;
    const Statistics<T> s = scaled_statistics<T>(true, spec.eps, count, freedom, each, &scaled_var);
    mean[c] = s.mean, shift[c] = s.shift, rstd[c] = s.rstd, var[c] = static_cast<T>(scaled_var);
  }

  void all() const {
    const Cut cut(spec, sizeof(T));
    const Scratch<T> origins(spec.channels);
    if (!spec.divide) std::fill(rstd, rstd + spec.channels, T{1});
    if (cut.groups == 1) {
      parallel_for(cut.blocks, std::max<int64_t>(1, parallel_elements / (cut.block * spec.batch * spec.space)), [&](int64_t begin, int64_t end) {
        double totals[2 * max_block];
        for (int64_t b = begin; b < end; ++b) {
          const Piece p = piece(spec, cut, b, 0);
          find_origins(spec, p, x, origins.data());
          sums_about(spec, p, x, origins.data(), totals);
          if (!finish(p, origins.data(), totals)) continue;
          sums_about<T>(spec, p, x, mean, totals);
          finish(p, mean, totals);
        }
      });
      return;
    }
    for (int64_t b = 0; b < cut.blocks; ++b) find_origins(spec, piece(spec, cut, b, 0), x, origins.data());
    const auto pass = [&](const T* origin) {
      bool far = false;
      const auto sum = [&](const Piece& p, double* totals) { sums_about(spec, p, x, origin, totals); };
      const auto done = [&](const Piece& p, double* totals) { far = finish(p, origin, totals) || far; };
      spec.divide ? for_each_block<2>(spec, cut, sum, done) : for_each_block<1>(spec, cut, sum, done);
      return far;
    };
    if (pass(origins.data())) pass(mean);
  }
};

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

// What x - mean is multiplied with. Made anew where it is needed: an array of it would move between the threads' caches.
template <class T, class Channel>
HWY_INLINE Vec<T> scale_of(Channel channel, const T* gain, const T* rstd) {
  return gain ? hn::Mul(channel(gain), channel(rstd)) : channel(rstd);
}

// The arrays of one channel_backward call.
//
// dx = scale (dy - bias_mean - x-hat gain_mean), scale = gain rstd, with the means of dy and dy x-hat over the channel and x-hat = d - offset. The
// unbiased variance divides its sum by count - 1, and so does its gradient. Without division there is no gain_mean.
template <class T>
struct ChannelBackward {
  const ChannelNorm& spec;
  const bool given_statistics;
  const T *x, *gain, *mean, *rstd, *dy;
  T *dx, *dgain, *dbias;
  T *constant, *gain_mean;  // [channels] each, for the pass that makes dx

  bool sums_needed() const { return dgain || dbias || !given_statistics; }
  bool centring_alone() const { return !spec.divide && !dgain; }

  void sum(const Piece& p, double* totals) const {
    centring_alone() ? centring_sums(spec, p, dy, totals) : gradient_sums(spec, p, x, mean, rstd, dy, totals);
  }

  // In loops as ChannelStatistics::finish has them.
  void finish(const Piece& p, double* totals) const {
    const double count = static_cast<double>(spec.batch * spec.space), by_count = 1 / count, by_freedom = 1 / (count - (spec.unbiased ? 1 : 0));
    const bool centred = !given_statistics, divided = spec.divide;
    double *const sum = totals, *const product = totals + p.stride, *const offset = totals + 2 * p.stride;
    if (dbias)
      for (int64_t i = 0; i < p.width; ++i) dbias[p.c + i] = static_cast<T>(sum[i]);
    if (centring_alone()) {
      for (int64_t i = 0; i < p.width; ++i) constant[p.c + i] = static_cast<T>(-sum[i] * by_count);
      return;
    }
    for (int64_t i = 0; i < p.width; ++i) {
      const double mean_offset = centred ? offset[i] * by_count : 0, dy_mean = sum[i] * by_count;
      product[i] -= mean_offset * sum[i];
      sum[i] = divided ? product[i] * by_freedom : 0;
      offset[i] = mean_offset * sum[i] - dy_mean;
    }
    for (int64_t i = 0; i < p.width; ++i) {
      gain_mean[p.c + i] = static_cast<T>(sum[i]);
      constant[p.c + i] = static_cast<T>(offset[i]);
    }
    if (dgain)
      for (int64_t i = 0; i < p.width; ++i) dgain[p.c + i] = static_cast<T>(product[i]);
  }

  // walk(f) calls f for all elements that are to get their dx.
  template <class Walk>
  void make_dx(Walk walk) const {
    if (given_statistics)
      return walk([&](auto channel) HWY_ATTR {
        return [dy = dy, dx = dx, s = scale_of<T>(channel, gain, rstd)](int64_t start, auto at)
                   HWY_ATTR { at.store_result(dx + start, hn::Mul(s, at.load(dy + start))); };
      });
    if (!spec.divide)
      return walk([&](auto channel) HWY_ATTR {
        return [dy = dy, dx = dx, s = scale_of<T>(channel, gain, rstd), k = channel(constant)](int64_t start, auto at)
                   HWY_ATTR { at.store_result(dx + start, hn::Mul(s, hn::Add(at.load(dy + start), k))); };
      });
    walk([&](auto channel) HWY_ATTR {
      return [x = x, dy = dy, dx = dx, m = channel(mean), r = channel(rstd), s = scale_of<T>(channel, gain, rstd), k = channel(constant),
              g = channel(gain_mean)](int64_t start, auto at) HWY_ATTR {
        const Vec<T> d = hn::Mul(hn::Sub(at.load(x + start), m), r);
        at.store_result(dx + start, hn::Mul(s, hn::NegMulAdd(d, g, hn::Add(at.load(dy + start), k))));
      };
    });
  }

  void all() const {
    const Cut cut(spec, sizeof(T));
    const bool both_passes = dx && cut.one_thread_a_channel();  // while the channel is in the thread's cache
    const auto sum_piece = [&](const Piece& p, double* totals) {
      if (sums_needed()) sum(p, totals);
    };
    const auto done = [&](const Piece& p, double* totals) {
      if (sums_needed()) finish(p, totals);
      if (both_passes) make_dx([&](auto f) { for_each_in_channel<T>(spec, p.c, f); });
    };
    if (sums_needed() || both_passes)
      centring_alone() ? for_each_block<1>(spec, cut, sum_piece, done) : for_each_block<3>(spec, cut, sum_piece, done);
    if (dx && !both_passes) make_dx([&](auto f) { for_each_element<T>(spec, cut, dx, f); });
  }
};

// A single channel is one run, whatever the batch; where its runs are long, threads share them instead.
ChannelNorm flat(ChannelNorm spec) {
  constexpr int64_t long_run = 64;
  if (spec.channels == 1 && spec.space < long_run) spec.space *= std::exchange(spec.batch, 1);
  return spec;
}

bool empty(const ChannelNorm& spec) { return spec.batch == 0 || spec.channels == 0 || spec.space == 0; }

template <class T>
struct CpuChannelNorm final : ChannelNormPart<T> {
  void statistics(const ChannelNorm& spec, const T* x, T* mean, T* shift, T* var, T* rstd) const override {
    const ChannelNorm shape = flat(spec);
    if (!empty(spec)) return ChannelStatistics<T>{shape, x, mean, shift, var, rstd}.all();
    std::fill(mean, mean + spec.channels, T{0});
    std::fill(shift, shift + spec.channels, T{0});
    if (spec.divide) std::fill(var, var + spec.channels, T{0});
    std::fill(rstd, rstd + spec.channels, T{0});
  }

  void forward(const ChannelNorm& spec, const T* x, const T* mean, const T* shift, const T* rstd, const T* gain, const T* bias, T* y) const override {
    if (empty(spec)) return;
    const auto f = [&](auto channel) HWY_ATTR {
      const Vec<T> s = scale_of<T>(channel, gain, rstd), b = bias ? channel(bias) : zero<T>(), k = shift ? hn::NegMulAdd(channel(shift), s, b) : b;
      return [x, y, m = channel(mean), s, k](int64_t start, auto at)
                 HWY_ATTR { at.store_result(y + start, hn::MulAdd(hn::Sub(at.load(x + start), m), s, k)); };
    };
    const ChannelNorm shape = flat(spec);
    const Cut cut(shape, sizeof(T));
    if (!cut.one_thread_a_channel()) return for_each_element<T>(shape, cut, y, f);
    parallel_for(cut.blocks, std::max<int64_t>(1, parallel_elements / (shape.batch * shape.space)), [&](int64_t first, int64_t last) {
      for (int64_t c = first; c < last; ++c) for_each_in_channel<T>(shape, c, f);
    });
  }

  void backward(const ChannelNorm& spec, bool given_statistics, const T* x, const T* gain, const T* mean, const T* rstd, const T* dy, T* dx, T* dgain,
                T* dbias) const override {
    if (!empty(spec)) {
      const Scratch<T> arrays(2 * spec.channels);
      T *const constant = arrays.data(), *const gain_mean = constant + spec.channels;
      const ChannelNorm shape = flat(spec);
      return ChannelBackward<T>{shape, given_statistics, x, gain, mean, rstd, dy, dx, dgain, dbias, constant, gain_mean}.all();
    }
    if (dgain) std::fill(dgain, dgain + spec.channels, T{0});
    if (dbias) std::fill(dbias, dbias + spec.channels, T{0});
  }

  void move_running(const RunningChannels<T>& r) const override {
    // Loops without a way out, so that they become vector code: a thousand channels would take longer than a core's share of the batch.
    const auto finite = [](T v) { return std::abs(v) <= std::numeric_limits<T>::max(); };
    const T unbiased = static_cast<T>(r.unbiased);
    int bad = 0;
    for (int64_t c = 0; c < r.channels; ++c) bad |= !finite(r.batch_mean[c]);
    if (r.batch_var)
      for (int64_t c = 0; c < r.channels; ++c) bad |= !finite(r.batch_var[c] * unbiased);
    if (bad) return;
    double weight = r.momentum;
    if (r.batches_tracked) {
      const int64_t count = ++*r.batches_tracked;
      if (r.cumulative) weight = 1.0 / static_cast<double>(count);
    }
    const auto move = [&](T* running, const T* batch, double factor) {
      const double keep = 1 - weight, take = weight * factor;
      for (int64_t c = 0; c < r.channels; ++c)
        running[c] = static_cast<T>(keep * static_cast<double>(running[c]) + take * static_cast<double>(batch[c]));
    };
    move(r.mean, r.batch_mean, 1);
    if (r.batch_var) move(r.var, r.batch_var, r.unbiased);
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
