#pragma once
// All normalisers are two kernels: y = (x - mean) rstd gain + bias, where rstd = 1/sqrt(var + eps), with squares summed about the mean or a value as
// near to it as the data's own spread (never E[x^2] - mean^2), eps inside the root, mean and rstd saved, and x-hat recomputed from x, never from y.
// <lamina/ops/norm.h> has the table of what each normaliser asks of them.
//
// Statistics whose squares overflow or vanish in T (|x| beyond 1e19 in f32) are taken after scaling, so they are as exact as any. Three ends remain:
// with eps = 0, values without spread get rstd = 0 (y = bias, no gradient); a deviation above 1/min(T) (8e37 in f32) has no rstd in T, nor has a row
// or channel that holds an inf or a NaN: its rstd is NaN and so is all of its y.

#include <cstdint>

namespace lamina::kernels {

/// Row normaliser (layer, RMS, partial RMS, group, instance, weight norm): statistics over each of `rows` runs of `width` elements.
struct RowNorm {
  int64_t rows = 0;
  int64_t width = 0;
  bool centre = true;    // subtract the mean (RMS norms do not; var is then the mean square)
  int64_t measured = 0;  // the first `measured` entries of a row give the statistics (width, but for partial RMS)
  // Which gain and bias an element uses: index ((row * width + column) / inner) % affine_count. Layer norm: affine_count = width, inner = 1;
  // per-channel affine on [N, C, space]: affine_count = C, inner = space; one gain per row: affine_count = rows, inner = width. 0: no affine.
  int64_t affine_count = 0;
  int64_t affine_inner = 1;
  double eps = 1e-5;
};

/// Channel normaliser (batch norm): x is [batch, channels, space], statistics per channel over batch and space.
struct ChannelNorm {
  int64_t batch = 0;
  int64_t channels = 0;
  int64_t space = 1;
  bool unbiased = false;  // normalise with the variance divided by m - 1 (the paper's small-batch choice) instead of m
  bool divide = true;     // by the deviation; mean-only batch norm does not, its rstd is 1
  double eps = 1e-5;
};

/// Running statistics of a batch or instance norm: running = (1 - momentum) running + momentum batch. A batch of which one statistic is not finite is
/// left out whole: it must not spoil every later evaluation.
template <class T>
struct RunningChannels {
  int64_t channels = 0;
  double momentum = 0.1;
  bool cumulative = false;                              // 1 / batches_tracked instead
  double unbiased = 1;                                  // times batch_var is the unbiased variance
  const T *batch_mean = nullptr, *batch_var = nullptr;  // [channels]; var null: mean-only norms keep none
  T *mean = nullptr, *var = nullptr;
  int64_t* batches_tracked = nullptr;  // grows by 1; null: nobody counts
};

template <class T>
struct NormKernels {
  virtual ~NormKernels() = default;

  /// y like x; rstd [rows]; mean [2, rows], not written when not centred: the means rounded to T, then what that took from them (at a large offset it
  /// is not small against the deviations). gain and bias may be null.
  virtual void row_forward(const RowNorm& spec, const T* x, const T* gain, const T* bias, T* y, T* mean, T* rstd) const = 0;
  /// dx, dgain, dbias may each be null. dgain and dbias [affine_count] are summed in a fixed order (same bits for every thread count).
  virtual void row_backward(const RowNorm& spec, const T* x, const T* gain, const T* mean, const T* rstd, const T* dy, T* dx, T* dgain,
                            T* dbias) const = 0;

  /// Batch statistics per channel: the mean as mean + shift (shift is what rounding the mean to T lost; at a large offset it is not small against the
  /// deviations), var biased or unbiased as `unbiased` says (inf where T cannot hold it), and rstd, which stays exact there. All [channels]; var is
  /// not written when nothing is divided.
  virtual void channel_statistics(const ChannelNorm& spec, const T* x, T* mean, T* shift, T* var, T* rstd) const = 0;
  /// rstd [channels] of given variances (evaluation); 1 when nothing is divided, var then may be null.
  virtual void channel_rstd(const ChannelNorm& spec, const T* var, T* rstd) const = 0;
  /// y = (x - mean - shift) rstd gain + bias with given mean, shift (null: 0) and rstd [channels].
  virtual void channel_forward(const ChannelNorm& spec, const T* x, const T* mean, const T* shift, const T* rstd, const T* gain, const T* bias,
                               T* y) const = 0;
  /// Backward through normalisation and statistics (which gives the mean's shift again). With `given_statistics` (evaluation) mean and var were
  /// constants.
  virtual void channel_backward(const ChannelNorm& spec, bool given_statistics, const T* x, const T* gain, const T* mean, const T* rstd, const T* dy,
                                T* dx, T* dgain, T* dbias) const = 0;
  virtual void move_running(const RunningChannels<T>& work) const = 0;
};

}  // namespace lamina::kernels
