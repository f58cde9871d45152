#pragma once
// Normalisation layers and the choice among them by name.

#include <functional>
#include <string>
#include <vector>

#include <lamina/nn/module.h>

namespace lamina::nn {

struct LayerNormOptions {
  double eps = 1e-5;
  bool gain = true;
  bool bias = true;
};

/// Layer normalisation over the trailing axes (Ba, Kiros, Hinton 2016). Parameters: weight (the gain, 1) and bias (0), of normalized_shape.
/// Throws Error for an eps that is negative or not finite.
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

struct BatchNormLayerOptions {
  double eps = 1e-5;
  double momentum = 0.1;    // running = (1 - momentum) running + momentum batch
  bool cumulative = false;  // average over all batches instead (PyTorch's momentum=None)
  bool affine = true;
  bool track_running_stats = true;
  bool unbiased = false;  // normalise with the unbiased batch variance (the paper, for batches of 4)
};

/// Batch normalisation (Ioffe & Szegedy 2015) of [N, C] or [N, C, L]. Parameters: weight (gain, 1), bias (0), both [C]; buffers running_mean (0),
/// running_var (1), num_batches_tracked (i64 scalar). In evaluation the running statistics normalise; without them (track_running_stats = false)
/// those of the batch do. Throws Error for another rank or channel count, one value per channel where batch statistics are needed, and options out of
/// range.
class BatchNorm1d : public Module {
 public:
  explicit BatchNorm1d(int64_t channels, BatchNormLayerOptions options = {});
  Tensor operator()(const Tensor& x);
  void members(Visitor& v) override;
  std::string describe() const override;

  /// Replaces the running statistics by averages over data: between begin and end, forward passes in training mode accumulate the batch means and
  /// *unbiased* variances with equal weight. end puts the former statistics back when `keep` is false or no batch came; num_batches_tracked always
  /// gets its former value. Normally called through recompute_population_statistics(). Nothing happens without track_running_stats.
  void begin_population_statistics();
  void end_population_statistics(bool keep = true);

  Parameter weight, bias;
  Buffer running_mean, running_var, num_batches_tracked;

 private:
  int64_t channels_;
  BatchNormLayerOptions options_;
  bool population_pass_ = false;
  Tensor former_mean_, former_var_, former_count_;  // during a population pass
};

/// Runs `forward` (one pass of `model` over the data, without graph) with every BatchNorm1d of the model collecting population statistics;
/// momentum-free, so that noisy running averages of small batches do not blur an evaluation. The normalisers are in training mode meanwhile, all
/// other layers in evaluation mode (dropout must not distort what evaluation will see); the modes are restored. If forward throws, the statistics are
/// as before.
void recompute_population_statistics(Module& model, const std::function<void()>& forward);

/// A normaliser by name: "none", "layer", "batch". One parser for every program and option struct.
struct NormSpec {
  enum class Kind { none, layer, batch };
  Kind kind = Kind::none;

  NormSpec() = default;
  NormSpec(Kind k) : kind(k) {}                                 // NOLINT
  NormSpec(const char* text) : NormSpec(parse(text)) {}         // NOLINT: .norm = "layer"
  NormSpec(const std::string& text) : NormSpec(parse(text)) {}  // NOLINT
  /// Throws InputError "[norm] unknown 'foo'; expected one of none, layer, batch".
  static NormSpec parse(const std::string& text);
  static std::vector<std::string> names();
  std::string str() const;
  bool operator==(const NormSpec&) const = default;
};

}  // namespace lamina::nn
