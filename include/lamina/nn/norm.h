#pragma once
// Normalisation layers, and the choice among them by name. What each shares statistics over, whether it centres, what it divides by and what its gain
// and bias follow: the table in <lamina/ops/norm.h>. Of weights instead of activations: <lamina/nn/weight_norm.h>.
//
// Defaults, members and state-dict names are PyTorch's: the gain is called weight (1 at first), bias starts as 0. Every constructor throws Error for
// an eps that is negative or not finite.

#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <lamina/nn/module.h>

namespace lamina::nn {

// -- statistics of one case: the same in training and evaluation -------------------------------------------------------

struct LayerNormOptions {
  double eps = 1e-5;
  bool gain = true;
  bool bias = true;
};

/// Layer normalisation over the trailing axes (Ba, Kiros, Hinton 2016). Parameters: weight and bias, of normalized_shape. Warns once of a
/// normalized_shape of one value, as RMSNorm does.
class LayerNorm : public Module {
 public:
  explicit LayerNorm(const Shape& normalized_shape, LayerNormOptions options = {});
  explicit LayerNorm(int64_t width, LayerNormOptions options = {}) : LayerNorm(Shape{width}, options) {}
  Tensor operator()(const Tensor& x) const;
  void members(Visitor& v) override;
  std::string describe() const override;

  Parameter weight, bias;

 private:
  Shape shape_;
  double eps_;
};

struct RMSNormLayerOptions {
  std::optional<double> eps = {};  // default: the dtype's machine epsilon
  double partial = 1;              // the part p of the entries that is measured, in (0, 1]
  bool gain = true;
  bool bias = false;
};

/// RMS normalisation over the trailing axes, also partial (Zhang & Sennrich 2019). Parameters: weight, and bias if asked for, of normalized_shape.
/// Throws Error for a `partial` out of range.
class RMSNorm : public Module {
 public:
  explicit RMSNorm(const Shape& normalized_shape, RMSNormLayerOptions options = {});
  explicit RMSNorm(int64_t width, RMSNormLayerOptions options = {}) : RMSNorm(Shape{width}, options) {}
  Tensor operator()(const Tensor& x) const;
  void members(Visitor& v) override;
  std::string describe() const override;

  Parameter weight, bias;

 private:
  Shape shape_;
  RMSNormLayerOptions options_;
};

struct GroupNormOptions {
  double eps = 1e-5;
  bool affine = true;
};

/// Group normalisation (Wu & He 2018) of [N, C] or [N, C, ...]. Parameters: weight and bias [C].
/// Throws Error for groups that do not divide C.
class GroupNorm : public Module {
 public:
  GroupNorm(int64_t groups, int64_t channels, GroupNormOptions options = {});
  Tensor operator()(const Tensor& x) const;
  void members(Visitor& v) override;
  std::string describe() const override;

  Parameter weight, bias;

 private:
  int64_t groups_, channels_;
  GroupNormOptions options_;
};

// -- running statistics: training and evaluation differ ----------------------------------------------------------------

/// What keeps running statistics that a pass over data can replace by averages: batch and instance norm, recurrent layers with batch norm.
class RunningStatistics {
 public:
  virtual ~RunningStatistics() = default;
  RunningStatistics() = default;
  RunningStatistics(const RunningStatistics&) = default;
  RunningStatistics& operator=(const RunningStatistics&) = default;
  RunningStatistics(RunningStatistics&&) noexcept = default;
  RunningStatistics& operator=(RunningStatistics&&) noexcept = default;

  /// Between begin and end, forward passes in training mode accumulate the batch means and *unbiased* variances with equal weight. end puts the
  /// former statistics back when `keep` is false or no batch came. Normally called through recompute_population_statistics(). Nothing happens without
  /// running statistics.
  virtual void begin_population_statistics() = 0;
  virtual void end_population_statistics(bool keep = true) = 0;
};

/// What batch and instance norm have in common: weight and bias [C]; buffers running_mean (0), running_var (1), num_batches_tracked (i64 scalar;
/// counts instance norms' batches too, where PyTorch leaves it at 0). Absent: whatever the options turn off.
class TrackingNorm : public Module, public RunningStatistics {
 public:
  void members(Visitor& v) override;

  /// num_batches_tracked gets its former value at the end.
  void begin_population_statistics() override;
  void end_population_statistics(bool keep = true) override;

  Parameter weight, bias;
  Buffer running_mean, running_var, num_batches_tracked;

 protected:
  struct Settings {
    const char* op;          // for errors: "batch_norm"
    int rank_min, rank_max;  // of x
    double eps, momentum;
    bool gain, bias, track, track_var;
  };
  TrackingNorm(int64_t channels, const Settings& settings);
  void check(const Tensor& x) const;
  /// Warns of evaluation with statistics that are not meant for it: those of its own batches, or those that a layer starts with.
  void warn_of_wrong_statistics();
  /// Whether this pass normalises with the statistics of x itself.
  bool from_data() const { return training() || !running_mean.defined(); }

  int64_t channels_;
  bool population_pass_ = false;

 private:
  const char* op_;
  int rank_min_, rank_max_;
  bool evaluated_ = false;  // whether an evaluation looked for wrong statistics; atomic, as several threads may evaluate at once
  Tensor former_mean_, former_var_, former_count_;  // during a population pass
};

struct BatchNormLayerOptions {
  double eps = 1e-5;
  double momentum = 0.1;    // running = (1 - momentum) running + momentum batch
  bool cumulative = false;  // average over all batches instead (PyTorch's momentum=None)
  bool affine = true;
  bool track_running_stats = true;
  bool unbiased = false;   // normalise with the unbiased batch variance (the Layer Normalization paper, for batches of 4)
  bool mean_only = false;  // subtract the mean, divide by nothing: no weight, no running_var (Salimans & Kingma 2016, section 4)
};

/// Batch normalisation (Ioffe & Szegedy 2015). In evaluation the running statistics normalise; without them (track_running_stats = false) those of
/// the batch do. Warns once (see core/warning.h) when it is evaluated before it has seen a training batch, and when it runs in training mode while no
/// gradients are recorded, as an evaluation that forgot eval() does. Throws Error for another rank or channel count, one value per channel where
/// batch statistics are needed, and options out of range.
class BatchNorm : public TrackingNorm {
 public:
  Tensor operator()(const Tensor& x);
  std::string describe() const override;

 protected:
  BatchNorm(const char* name, int rank_min, int rank_max, int64_t channels, const BatchNormLayerOptions& options);

 private:
  const char* name_;
  BatchNormLayerOptions options_;
};

/// Of [N, C] or [N, C, L].
class BatchNorm1d : public BatchNorm {
 public:
  explicit BatchNorm1d(int64_t channels, BatchNormLayerOptions options = {}) : BatchNorm("BatchNorm1d", 2, 3, channels, options) {}
};
/// Of [N, C, H, W].
class BatchNorm2d : public BatchNorm {
 public:
  explicit BatchNorm2d(int64_t channels, BatchNormLayerOptions options = {}) : BatchNorm("BatchNorm2d", 4, 4, channels, options) {}
};

struct InstanceNormLayerOptions {
  double eps = 1e-5;
  double momentum = 0.1;
  bool cumulative = false;
  bool affine = false;
  bool track_running_stats = false;
};

/// Instance normalisation (Ulyanov, Vedaldi, Lempitsky 2016). In evaluation too an instance's own statistics normalise it, unless running ones are
/// tracked. Throws Error for another rank or channel count, instances of one value whose statistics are needed, and options out of range.
class InstanceNorm : public TrackingNorm {
 public:
  Tensor operator()(const Tensor& x);
  std::string describe() const override;

 protected:
  InstanceNorm(const char* name, int rank, int64_t channels, const InstanceNormLayerOptions& options);

 private:
  const char* name_;
  InstanceNormLayerOptions options_;
};

/// Of [N, C, L].
class InstanceNorm1d : public InstanceNorm {
 public:
  explicit InstanceNorm1d(int64_t channels, InstanceNormLayerOptions options = {}) : InstanceNorm("InstanceNorm1d", 3, channels, options) {}
};
/// Of [N, C, H, W].
class InstanceNorm2d : public InstanceNorm {
 public:
  explicit InstanceNorm2d(int64_t channels, InstanceNormLayerOptions options = {}) : InstanceNorm("InstanceNorm2d", 4, channels, options) {}
};

/// Runs `forward` (one pass of `model` over the data, without graph) with every batch norm (tracking instance norm, recurrent layer with batch norm)
/// of the model collecting population statistics; momentum-free, so that noisy running averages of small batches do not blur an evaluation. The
/// normalisers are in training mode meanwhile, all other layers in evaluation mode (dropout must not distort what evaluation will see); the modes are
/// restored. If forward throws, the statistics are as before.
void recompute_population_statistics(Module& model, const std::function<void()>& forward);

// -- by name -----------------------------------------------------------------------------------------------------------

/// A normaliser by name, for every program and option struct:
///
///   none             nothing
///   layer            LayerNorm; of images and sequences [N, C, ...]: over all of a case, gain and bias by channel (GroupNorm of one group)
///   batch            BatchNorm1d or 2d
///   meanbatch        the same, mean only
///   instance         InstanceNorm1d or 2d with gain and bias; needs an axis after the channels
///   group:8          GroupNorm of 8 groups
///   rms              RMSNorm; needs the features in the last axis
///   prms:0.0625      RMSNorm that measures this part of them
///   weight           weight norm of the weights before it, nothing after
///   weight+meanbatch both
///   layer-cell       of recurrent layers alone (<lamina/ops/recurrent.h>), as are the next two: LayerNorm of an LSTM's c on its way out
///   layer-carry      layer, with the normalised c carried on
///   layer-gates      layer-carry, with each gate's sum of inputs normalised by itself
struct NormSpec {
  enum class Kind { none, layer, batch, instance, group, rms };
  enum class Variant { standard, cell, carry, gates };
  Kind kind = Kind::none;               // of the activations
  Variant variant = Variant::standard;  // layer: others than standard are of recurrent layers
  bool mean_only = false;               // batch
  int64_t groups = 0;                   // group
  double partial = 1;                   // rms
  bool weight = false;                  // weight norm of the weights

  NormSpec() = default;
  NormSpec(const char* text) : NormSpec(parse(text)) {}         // NOLINT: .norm = "layer"
  NormSpec(const std::string& text) : NormSpec(parse(text)) {}  // NOLINT
  /// Throws InputError "[norm] unknown 'foo'; expected one of none, layer, batch, ...", with `names`, or "[norm] 'prms:2': expected ...".
  static NormSpec parse(const std::string& text, const std::vector<std::string>& names = NormSpec::names());
  /// Examples of all that parse() takes (any number of groups, any part in (0, 1]).
  static std::vector<std::string> names();
  std::string str() const;
  /// Whether what a case gives depends on the others of its batch.
  bool couples_batch() const { return kind == Kind::batch; }
  bool operator==(const NormSpec&) const = default;
};

/// Where a normaliser stands, and who builds it.
struct NormPlace {
  const char* builder = "norm";  // for errors: "mlp"
  int64_t features = 0;          // C
  int space = 0;                 // axes after the features: 0 [..., C], 1 [N, C, L], 2 [N, C, H, W]
};

struct NormOptions {
  std::optional<double> eps = {};         // default: each layer's own
  BatchNormLayerOptions batch_norm = {};  // eps above and the spec's mean_only win
};

/// The names that make sense at a place, for errors and help.
std::vector<std::string> norm_names(const NormPlace& place);

using NormLayer =
    std::variant<std::monostate, LayerNorm, RMSNorm, GroupNorm, BatchNorm1d, BatchNorm2d, InstanceNorm1d, InstanceNorm2d>;  // monostate: none

/// The one factory: the layer that `spec` names for the activations (weight norm is the business of whoever holds the weights: LinearOptions).
/// Throws InputError "[mlp] norm: 'instance' ... [N, 100]; expected one of ..." for what makes no sense at this place: instance without space, rms
/// with space, groups that do not divide the features or would hold one value each, a variant of recurrent layers.
NormLayer make_norm(const NormSpec& spec, const NormPlace& place, const NormOptions& options = {});

/// Any of them as a member of a layer; its parameters appear under the member's own name ("norm1.weight").
class Norm : public Module {
 public:
  Norm() = default;  // none
  Norm(const NormSpec& spec, const NormPlace& place, const NormOptions& options = {}) : layer(make_norm(spec, place, options)) {}
  Tensor operator()(const Tensor& x);
  void members(Visitor& v) override;
  std::string describe() const override;  // the layer's; "no norm"

  NormLayer layer;
};

}  // namespace lamina::nn
