#pragma once
// The net of the programs that learn sequences: [embedding or one-hot ->] recurrent layers -> linear.

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include <lamina/nn/layers.h>
#include <lamina/nn/rnn.h>

namespace lamina::train {

struct SequenceModelOptions {
  RecurrentCell cell = RecurrentCell::lstm;
  nn::RecurrentLayerOptions layers = {};  // input: width of the vectors; with a vocabulary it follows from the next two
  int64_t vocabulary = 0;                 // 0: vectors [T, N, C] come in, else ids i64 [T, N] of so many symbols
  int64_t embedding = 0;                  // width of a symbol's learned vector; 0: one-hot
  int64_t outputs = 1;
  double state_noise = 0;  // deviation of Gaussian noise on h at the start, in training (Cooijmans et al. 2017: batch norm where inputs are constant)
};

/// layers.dropout also drops in front of the linear layer.
class SequenceModel : public nn::Module {
 public:
  /// Throws what Recurrent throws, and Error for negative sizes or noise.
  explicit SequenceModel(const SequenceModelOptions& options);

  /// Outputs of every step [T, N, outputs]; `state` goes in and comes out.
  Tensor steps(const Tensor& x, nn::RecurrentState& state);
  /// Outputs of the last `count` steps [count, N, outputs].
  Tensor last_steps(const Tensor& x, int64_t count);
  /// One output for each sequence [N, outputs], from the last state of the topmost layer (both directions side by side): a step that counts, whatever
  /// the lengths.
  Tensor last(const Tensor& x, std::span<const int64_t> lengths = {});
  /// last(), for classifiers.
  Tensor operator()(const Tensor& x) { return last(x); }

  void members(nn::Visitor& v) override;
  std::string describe() const override { return "SequenceModel"; }
  const SequenceModelOptions& options() const { return options_; }

 private:
  Tensor vectors(const Tensor& x) const;
  nn::RecurrentState start(int64_t batch, const nn::RecurrentState& state);

  SequenceModelOptions options_;
  std::optional<nn::Embedding> embedding_;
  nn::Recurrent recurrent_;
  nn::Dropout dropout_;
  nn::Linear output_;
  nn::Buffer noise_;  // position in the stream of the noise
};

}  // namespace lamina::train
