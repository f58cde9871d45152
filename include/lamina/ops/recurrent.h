#pragma once
// A recurrent layer over a whole sequence as one op: the input's product once for all steps, a product and a fused cell per step, the weights'
// gradients once after the loop. Gate order is PyTorch's: i, f, g, o (LSTM), r, z, n (GRU).
//
// With a_x = W_ih x_t, a_h = W_hh h_{t-1} and s the logistic function:
//   LSTM  (i f g o) = X(a_x) + b_ih + R(a_h) + b_hh;  c_t = s(f) c_{t-1} + s(i) tanh(g);  h_t = s(o) tanh(K(c_t))
//   GRU   (r z) likewise;  n = tanh(X(a_x) + b_ih + s(r) (R(a_h) + b_hh));  h_t = (1 - s(z)) n + s(z) h_{t-1}
//   RNN   h_t = tanh(X(a_x) + b_ih + R(a_h) + b_hh)
// X, R and K are gain * normalised (K: + bias_c) as the table says, or nothing:
//
//   norm         X and R                                    K                 source
//   none         -                                          -
//   layer        layer norm over all gates (GRU: r, z       layer norm;       Ba, Kiros, Hinton 2016, eq. 20-22 and 26-28
//                together, n alone)                         c stays raw
//   layer_cell   -                                          layer norm        the same, eq. 29-31 (DRAW); LSTM only
//   layer_carry  as layer                                   layer norm, and   torch benchmarks/fastrnns; LSTM only
//                                                           c_t is its result
//   layer_gates  layer norm of each gate of a_x + a_h       as layer_carry    TensorFlow's LayerNormBasicLSTMCell; LSTM only
//   rms          as layer, without the mean                 as layer          Zhang & Sennrich 2019
//   batch        batch norm, statistics for each step       batch norm        Cooijmans et al. 2017, eq. 6-9
// Biases stand after the normaliser, where they are the paper's beta.

#include <cstdint>
#include <span>

#include <lamina/core/tensor.h>

namespace lamina {

enum class RecurrentCell { lstm, gru, rnn };
enum class RecurrentNorm { none, layer, layer_cell, layer_carry, layer_gates, rms, batch };

/// Gates of a cell: 4, 3 or 1.
int64_t gate_count(RecurrentCell cell);

struct RecurrentOptions {
  RecurrentCell cell = RecurrentCell::lstm;
  RecurrentNorm norm = RecurrentNorm::none;
  bool reverse = false;  // from each sequence's end to its start
  double eps = 1e-5;
  bool training = true;   // batch: statistics of the batch, which move the running ones; else the running ones normalise
  double momentum = 0.1;  // batch: running = (1 - momentum) running + momentum batch
};

/// G gates, H hidden, C inputs. Undefined: biases as wished, gains where the norm has none (layer_gates has gain_hh only).
struct RecurrentParameters {
  Tensor weight_ih;                   // [G H, C]
  Tensor weight_hh;                   // [G H, H]
  Tensor bias_ih = {}, bias_hh = {};  // [G H]
  Tensor gain_ih = {}, gain_hh = {};  // [G H]
  Tensor gain_c = {}, bias_c = {};    // [H], LSTM with any norm
};

/// Running statistics of `batch`, a row for each step of the walk (reverse: the first row is for each sequence's last step); steps past the last row
/// use the last, and move it in turn in training. var is unbiased, as in batch_norm. Updated in place. In training all may be undefined: then none
/// are kept.
struct RecurrentStatistics {
  Tensor mean_ih, var_ih, mean_hh, var_hh;  // [steps, G H]
  Tensor mean_c = {}, var_c = {};           // [H] a step, LSTM only
};

struct RecurrentResult {
  Tensor y;  // [T, N, H]: h of every step, 0 past a sequence's end
  Tensor h;  // [N, H]: at each sequence's end (reverse: its start)
  Tensor c;  // [N, H], LSTM only
};

/// x [T, N, C]; h0 and c0 [N, H] (undefined: 0; c0 for LSTM only); lengths: how many steps of each sequence count, each in [0, T] (empty: T for all).
/// A sequence gives the same as alone, for every norm but batch, whose statistics at a step come from the sequences that have such a step.
/// T = 0 and length 0 give h = h0, c = c0. Gradients: x, h0, c0 and all parameters. f32, f64.
/// Saved for the backward pass, per step and sequence, y included: 6 H values for none, 10 H with layer (on a GPU 14 H) and 9 numbers of statistics
/// (LSTM); with grad mode off only y and what some steps need. NaN and infinities in x beyond a sequence's length are not read; gradients there are
/// exactly 0.
/// Throws Error for shapes, dtypes and devices that do not fit, parameters that the norm lacks or does not have, lengths out of range, a norm that
/// the cell does not have, and batch statistics of fewer than two sequences.
RecurrentResult recurrent(const Tensor& x, const Tensor& h0, const Tensor& c0, const RecurrentParameters& parameters,
                          const RecurrentOptions& options = {}, std::span<const int64_t> lengths = {}, RecurrentStatistics statistics = {});

}  // namespace lamina
