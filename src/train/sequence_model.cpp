#include <lamina/train/sequence_model.h>

#include <lamina/ops/shape_ops.h>
#include "core/format.h"

namespace lamina::train {
namespace {

nn::RecurrentLayerOptions layer_options(const SequenceModelOptions& options) {
  nn::RecurrentLayerOptions layers = options.layers;
  if (options.vocabulary > 0) layers.input = options.embedding > 0 ? options.embedding : options.vocabulary;
  return layers;
}

}  // namespace

SequenceModel::SequenceModel(const SequenceModelOptions& options)
    : options_(options),
      recurrent_(options.cell, layer_options(options)),
      dropout_(options.layers.dropout),
      output_((options.layers.bidirectional ? 2 : 1) * options.layers.hidden, options.outputs) {
  if (options.vocabulary < 0 || options.embedding < 0)
    fail("sequence_model", "vocabulary and embedding: expected at least 0, got {} and {}", options.vocabulary, options.embedding);
  if (!(options.state_noise >= 0)) fail("sequence_model", "state_noise: expected at least 0, got {}", options.state_noise);
  if (options.vocabulary > 0 && options.embedding > 0) embedding_.emplace(options.vocabulary, options.embedding);
  if (options.state_noise > 0) noise_ = nn::Buffer::stream();
}

Tensor SequenceModel::vectors(const Tensor& x) const {
  if (options_.vocabulary == 0) return x;
  return embedding_ ? (*embedding_)(x) : one_hot(x, options_.vocabulary);
}

nn::RecurrentState SequenceModel::start(int64_t batch, const nn::RecurrentState& state) {
  if (options_.state_noise == 0 || !training()) return state;
  const int64_t rows = options_.layers.layers * (options_.layers.bidirectional ? 2 : 1);
  Rng rng = noise_.rng();
  const Tensor noise = randn({rows, batch, options_.layers.hidden}, rng, output_.weight.tensor().dtype(), 0, options_.state_noise);
  noise_.set_rng(rng);
  const Tensor there = noise.to(output_.weight.tensor().device());
  return {state.h.defined() ? state.h + there : there, state.c};
}

Tensor SequenceModel::steps(const Tensor& x, nn::RecurrentState& state) {
  nn::RecurrentOutput result = recurrent_(vectors(x), start(x.size(1), state));
  state = result.state;
  return output_(dropout_(result.y));
}

Tensor SequenceModel::last_steps(const Tensor& x, int64_t count) {
  const nn::RecurrentOutput result = recurrent_(vectors(x), start(x.size(1), {}));
  return output_(dropout_(slice(result.y, 0, x.size(0) - count)));
}

Tensor SequenceModel::last(const Tensor& x, std::span<const int64_t> lengths) {
  const Tensor h = recurrent_(vectors(x), start(x.size(1), {}), lengths).state.h;  // [layers * directions, N, H]
  const Tensor top = options_.layers.bidirectional ? concat({select(h, 0, -2), select(h, 0, -1)}, 1) : select(h, 0, -1);
  return output_(dropout_(top));
}

void SequenceModel::members(nn::Visitor& v) {
  if (embedding_) v("embedding", *embedding_);
  v("recurrent", recurrent_);
  if (options_.layers.dropout > 0) v("dropout", dropout_);
  v("output", output_);
  v("state_noise", noise_);
}

}  // namespace lamina::train
