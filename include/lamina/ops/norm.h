#pragma once
// Normalisers as ops. Every one of them is
//
//   y = (x - mean) / sqrt(var + eps) * gain + bias
//
// with two-pass statistics, biased variances unless said and eps inside the root. What differs is one line each (x is a row [..., n], or [N, C,
// space] with `space` any number of axes, or a weight [out, n]):
//
//   normaliser             share statistics           centred  divided by the root of           gain, bias follow   kernel
//   layer_norm             the n entries of a row     yes      their variance                   the entry           row
//   rms_norm               the n entries of a row     no       their mean square                the entry           row
//   rms_norm, partial p    the n entries of a row     no       the mean square of ceil(n p)     the entry           row
//   group_norm             C/G channels of one case   yes      their variance                   the channel         row
//   instance_norm          one channel of one case    yes      its variance                     the channel         row
//   batch_norm             one channel of the batch   yes      its variance                     the channel         channel
//   batch_norm, mean_only  one channel of the batch   yes      1: nothing is divided            the channel         channel
//   weight_norm            the n inputs of a unit     no       their mean square (eps = 0)      the unit: g/sqrt(n) row
//
// The two kernels are specified in src/kernels/norm.h. Batch norm, and instance norm where asked, keep running statistics for evaluation; the other
// normalisers do the same in training and evaluation.
//
// Large and small values (f32 and f64 alike): squares that overflow or vanish do no harm, statistics are then taken after scaling. With eps = 0
// values without spread give the bias and no gradient. A row or channel is NaN, alone, if what is measured of it holds an inf or a NaN or deviates by
// more than 1/min (8e37 in f32).

#include <optional>

#include <lamina/core/tensor.h>

namespace lamina {

/// Layer normalisation (Ba, Kiros, Hinton 2016, eqs. 3-4) over the trailing axes.
/// x [..., normalized_shape]; gain and bias [normalized_shape] or undefined -> y like x. A row is one setting of the leading axes.
/// Gradients: x, gain, bias. Saves: x, gain, mean [2, R] (as rounded, and what that took), rstd [R]. f32, f64.
/// Throws Error when x does not end in normalized_shape, normalized_shape is empty or has no element while x has rows, gain or bias differ from it,
/// or eps is negative.
Tensor layer_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& gain = Tensor(), const Tensor& bias = Tensor(), double eps = 1e-5);

struct RMSNormOptions {
  double partial = 1;              // the part p of a row, in (0, 1], that is measured; the paper's pRMSNorm takes 0.0625
  std::optional<double> eps = {};  // default: the dtype's machine epsilon (1.2e-7 in f32), as in PyTorch
};

/// RMS normalisation (Zhang & Sennrich 2019, eq. 4): y = x / sqrt(mean(x^2) + eps) * gain + bias; the mean over the first k = ceil(n p) of a row's n
/// entries. A part of k = n p that is whole but for rounding counts as whole. Shapes, gradients and errors as layer_norm; saves x, gain, rstd [R].
/// Throws Error for a `partial` outside (0, 1] as well.
Tensor rms_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& gain = Tensor(), const Tensor& bias = Tensor(),
                RMSNormOptions options = {});

/// Group normalisation (Wu & He 2018): x [N, C] or [N, C, ...] in `groups` groups of C/groups channels; gain and bias [C] or undefined.
/// Gradients: x, gain, bias. Saves: x, gain, mean [2, N groups] and rstd [N groups]. f32, f64.
/// Throws Error for rank < 2, groups that do not divide C, groups of one value, [C] mismatches or a negative eps.
Tensor group_norm(const Tensor& x, int64_t groups, const Tensor& gain = Tensor(), const Tensor& bias = Tensor(), double eps = 1e-5);

struct InstanceNormOptions {
  bool training = true;  // normalise with the instance's own statistics, and move the running ones; else the running ones normalise, if there are any
  double momentum = 0.1;    // running = (1 - momentum) running + momentum batch
  bool cumulative = false;  // momentum = 1 / count instead
  double eps = 1e-5;
};

/// Instance normalisation (Ulyanov, Vedaldi, Lempitsky 2016): x [N, C, L] or [N, C, ...]; gain and bias [C] or undefined.
/// running_mean and running_var [C] (or both undefined) take the mean over the batch of the instances' means and *unbiased* variances (PyTorch's
/// rule); everything else about them is as in batch_norm. Gradients: x, gain, bias. Saves: x, gain, mean [2, N C] and rstd [N C].
/// Throws Error for rank < 3, instances of one value where their own statistics are needed, and what batch_norm throws.
Tensor instance_norm(const Tensor& x, const Tensor& gain = Tensor(), const Tensor& bias = Tensor(), Tensor running_mean = Tensor(),
                     Tensor running_var = Tensor(), Tensor batches_tracked = Tensor(), InstanceNormOptions options = {});

struct BatchNormOptions {
  bool training = true;     // batch statistics; else the running ones
  double momentum = 0.1;    // running = (1 - momentum) running + momentum batch
  bool cumulative = false;  // momentum = 1 / count instead (PyTorch's momentum = None)
  bool unbiased = false;    // in training, normalise with the unbiased variance too (the paper's choice for batches of 4)
  bool mean_only = false;   // subtract the mean and divide by nothing (Salimans & Kingma 2016, section 4, for use with weight norm)
  double eps = 1e-5;
};

/// Batch normalisation (Ioffe & Szegedy 2015): x [N, C] or [N, C, ...]; statistics per channel over all other axes; gain and bias [C] or undefined.
/// running_mean and running_var [C] (or both undefined; mean_only has no running_var) are updated in training, outside the graph, by the batch mean
/// and the *unbiased* batch variance (PyTorch's rule); `batches_tracked` (i64 scalar or undefined) is incremented. In evaluation they normalise;
/// without them batch statistics do. A batch whose statistics are not finite (a NaN or inf in x, or a variance beyond the dtype) gives a result that
/// is as right as it can be but, unlike in PyTorch, leaves running statistics and count alone, so that one bad batch does not spoil every later
/// evaluation. Gradients: x, gain, bias. Saves: x, gain, mean [C], rstd [C]. Throws Error for rank < 2, [C] mismatches, only one of the running
/// statistics, `cumulative` without `batches_tracked`, a momentum outside [0, 1], a negative eps, or batch statistics of one value per channel. An
/// empty batch gives an empty result and leaves the statistics alone.
Tensor batch_norm(const Tensor& x, const Tensor& gain, const Tensor& bias, Tensor running_mean, Tensor running_var, Tensor batches_tracked,
                  BatchNormOptions options = {});

/// Weight normalisation (Salimans & Kingma 2016, eq. 2): w = g v / ||v||, the norm over all axes but the first: v [out, ...], g [out, 1, ...] -> w
/// like v. Gradients: v (orthogonal to v), g (eq. 3). Saves: v, g / sqrt(n), rstd [out]. f32, f64. A row of zeros has no direction: w = 0 and neither
/// v nor g gets a gradient there (PyTorch gives NaN). Tiny and huge rows are exact. Throws Error for v of rank 0 and another shape of g.
Tensor weight_norm(const Tensor& v, const Tensor& g);

}  // namespace lamina
