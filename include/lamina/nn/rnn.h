#pragma once
// Recurrent layers over sequences [T, N, C]: LSTM, GRU and RNN (tanh), with any normalisation of <lamina/ops/recurrent.h>, and their single steps.
// Defaults, weights and state-dict keys of the plain forms are PyTorch's: weight_ih_l0 [G H, C], weight_hh_l0 [G H, H], bias_ih_l0, bias_hh_l0;
// "_reverse" at the end for the other direction. Normalised ones have gain_ih_l0, gain_hh_l0, gain_c_l0, bias_c_l0 as well, with batch the running
// statistics (running_mean_ih_l0 [max_steps, G H], ...); weight norm has weight_ih_l0_g and weight_ih_l0_v, weight_hh_l0_g and weight_hh_l0_v.

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <lamina/nn/layers.h>
#include <lamina/nn/module.h>
#include <lamina/nn/norm.h>
#include <lamina/nn/weight_norm.h>
#include <lamina/ops/recurrent.h>

namespace lamina::nn {

struct RecurrentLayerOptions {
  int64_t input = 0;   // C
  int64_t hidden = 0;  // H
  int64_t layers = 1;
  NormSpec norm = "none";        // none, layer, layer-cell, layer-carry, layer-gates, rms, batch, weight (GRU, RNN: none, layer, rms, batch, weight)
  bool bias = true;              // bias_ih and bias_hh
  bool batch_first = false;      // [N, T, C] in and out; states are the same
  double dropout = 0;            // between layers, in training; the masks' stream is the buffer dropout.rng
  bool bidirectional = false;    // outputs of both directions side by side: [T, N, 2 H]
  bool learn_state = false;      // the state at the start is a parameter (h0, c0 [layers * directions, H]), 0 at first, where none is given
  std::string init = "pytorch";  // weights: "pytorch" is U(-1/sqrt(H), 1/sqrt(H)) for all, biases too; others per gate as init::parse says
                                 // ("orthogonal", ...). Biases start as 0 there, and where they are a normaliser's (its beta)
  std::optional<double> forget_bias = {};  // LSTM: f's bias_ih starts as this and f's bias_hh as 0
  std::optional<double> gain = {};         // at first; default 1, batch 0.1 (Cooijmans et al. 2017)
  std::optional<double> eps = {};          // default 1e-5
  double momentum = 0.1;                   // batch
  int64_t max_steps = 0;                   // batch: steps with statistics of their own; required there
};

/// [layers * directions, N, H] each, as in PyTorch; c for LSTM only. Undefined: at the start 0 (or the learned state).
struct RecurrentState {
  Tensor h, c;

  /// The same values without history, to carry a state from one stretch of a sequence to the next (truncated back-propagation).
  RecurrentState detach() const;
};

struct RecurrentOutput {
  Tensor y;              // [T, N, directions * H] (batch_first: [N, T, ...]), 0 past a sequence's end
  RecurrentState state;  // at the end of each sequence (reverse: its start)
};

/// The parameters of one layer in one direction; members are PyTorch's names with a suffix.
struct RecurrentWeights {
  RecurrentWeights(RecurrentCell cell, int64_t input, const RecurrentLayerOptions& options);

  /// recurrent() with these parameters. `step` >= 0: batch takes and moves the statistics of this step alone, for x of one step.
  /// h0 and c0 may be undefined.
  RecurrentResult run(const Tensor& x, const RecurrentState& start, const RecurrentOptions& options, std::span<const int64_t> lengths = {},
                      int64_t step = -1);
  void members(Visitor& v, const std::string& suffix);
  void drawn();
  /// batch: warns once of an evaluation in training mode, and of one up to a step (`steps` of them) that no training batch has had.
  void warn_of_wrong_statistics(const char* op, const Module& layer, int64_t steps);
  void begin_population_statistics();
  void end_population_statistics(bool keep);

  Parameter weight_ih, weight_hh, bias_ih, bias_hh, gain_ih, gain_hh, gain_c, bias_c;  // absent: what the norm lacks
  WeightNorm norm_ih, norm_hh;                                                         // norm weight: in place of weight_ih and weight_hh
  std::array<Buffer, 3> running_mean, running_var;                                     // batch: of ih, hh and c

 private:
  void set_forget_bias();

  std::optional<double> forget_bias_;
  bool population_pass_ = false;
  int64_t evaluated_ = 0;                                  // steps whose statistics were looked at; atomic
  std::vector<Tensor> former_mean_, former_var_, counts_;  // during a population pass
};

/// What LSTM, GRU and RNN have in common; for code that takes the cell as an option.
/// Throws InputError for sizes < 1, a hidden >= 2^31, more than 10,000 layers, a dropout or momentum outside [0, 1], a norm that the cell does not
/// have (with the list of those it has), batch without max_steps, a forget bias without biases or of another cell than LSTM. With batch it warns as
/// BatchNorm does (core/warning.h). initialise_weight_norms() leaves recurrent layers as they are: what a step gives depends on the steps before it.
class Recurrent : public Module, public RunningStatistics {
 public:
  Recurrent(RecurrentCell cell, const RecurrentLayerOptions& options);

  /// `lengths`: how many steps of each sequence count (empty: all), in any order. Throws Error for another rank, width or state shape, a c where the
  /// cell has none, and what recurrent() throws.
  RecurrentOutput operator()(const Tensor& x, const RecurrentState& state = {}, std::span<const int64_t> lengths = {});
  void members(Visitor& v) override;
  void drawn() override;
  std::string describe() const override;  // "LSTM(28 -> 128, 2 layers, norm layer)"
  void begin_population_statistics() override;
  void end_population_statistics(bool keep = true) override;

  RecurrentCell cell() const { return cell_; }
  const RecurrentLayerOptions& options() const { return options_; }
  /// Names of the norms that a cell has.
  static std::vector<std::string> norm_names(RecurrentCell cell);

  std::vector<RecurrentWeights> weights;  // [layer * directions + direction]
  Parameter h0, c0;                       // learned state

 private:
  RecurrentState start_of(const RecurrentState& state, int64_t index, int64_t batch) const;

  RecurrentCell cell_;
  RecurrentLayerOptions options_;
  Dropout dropout_;
};

class LSTM : public Recurrent {
 public:
  explicit LSTM(const RecurrentLayerOptions& options) : Recurrent(RecurrentCell::lstm, options) {}
};
class GRU : public Recurrent {
 public:
  explicit GRU(const RecurrentLayerOptions& options) : Recurrent(RecurrentCell::gru, options) {}
};
class RNN : public Recurrent {
 public:
  explicit RNN(const RecurrentLayerOptions& options) : Recurrent(RecurrentCell::rnn, options) {}
};

/// One step: x [N, C] and a state [N, H] give the next state. The same parameters without "_l0": weight_ih, weight_hh, bias_ih, bias_hh, ...; a
/// learned state h0, c0 is [1, H]. Throws InputError as Recurrent, and for options of whole sequences (layers, batch_first, dropout, bidirectional).
class RecurrentStep : public Module, public RunningStatistics {
 public:
  RecurrentStep(RecurrentCell cell, const RecurrentLayerOptions& options);

  /// `step`: which one this is, from 0, for batch's statistics; steps past the last of them use the last. Throws Error for another rank, width or
  /// state shape, a negative step, and what recurrent() throws.
  RecurrentState operator()(const Tensor& x, const RecurrentState& state = {}, int64_t step = 0);
  void members(Visitor& v) override;
  void drawn() override { weights.drawn(); }
  std::string describe() const override;  // "LSTMCell(28 -> 128, norm layer)"
  void begin_population_statistics() override { weights.begin_population_statistics(); }
  void end_population_statistics(bool keep = true) override { weights.end_population_statistics(keep); }

  RecurrentCell cell() const { return cell_; }
  const RecurrentLayerOptions& options() const { return options_; }

  RecurrentWeights weights;
  Parameter h0, c0;

 private:
  RecurrentCell cell_;
  RecurrentLayerOptions options_;
};

class LSTMCell : public RecurrentStep {
 public:
  explicit LSTMCell(const RecurrentLayerOptions& options) : RecurrentStep(RecurrentCell::lstm, options) {}
};
class GRUCell : public RecurrentStep {
 public:
  explicit GRUCell(const RecurrentLayerOptions& options) : RecurrentStep(RecurrentCell::gru, options) {}
};
class RNNCell : public RecurrentStep {
 public:
  explicit RNNCell(const RecurrentLayerOptions& options) : RecurrentStep(RecurrentCell::rnn, options) {}
};

}  // namespace lamina::nn
