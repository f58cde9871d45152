#pragma once
// A recurrent layer's loop over time: the recurrent product and the cell of each step, and their backward. <lamina/ops/recurrent.h> has the
// equations.
//
// Sequences stand sorted by length, the longest first, so that those alive at a step are the first `alive`. An array over time has a row for each
// sequence and step: those of step s (in the order of the walk) are the rows [offset[s], offset[s] + alive[s]).

#include <cstdint>

#include "kernels/gemm.h"

namespace lamina::kernels {

enum class Cell : uint8_t { lstm, gru, rnn };

/// What normalises the summed inputs.
enum class TermNorm : uint8_t {
  none,
  terms,    // a_x and a_h, each over its row: all gates together (GRU: r and z, and n)
  gates,    // each gate of a_x + a_h over its part of the row
  columns,  // a_x and a_h, each over the sequences of a step; K too
};

struct RecurrentSpec {
  Cell cell = Cell::lstm;
  TermNorm norm = TermNorm::none;
  bool normalise_c = false;  // h = s(o) tanh(K(c)), not tanh(c); an LSTM with `norm` always does
  bool carry = false;        // the next step gets K(c), not c
  bool centre = true;        // rows: subtract the mean
  bool given = false;        // columns: the statistics are given
  int64_t hidden = 0;
  double eps = 1e-5;

  int64_t gates() const { return cell == Cell::lstm ? 4 : cell == Cell::gru ? 3 : 1; }
  int64_t width() const { return gates() * hidden; }
  /// Whether a_h is added to a_x before anything else happens to it; otherwise it has an array of its own.
  bool sums_terms() const { return (norm == TermNorm::none && cell != Cell::gru) || norm == TermNorm::gates; }
  /// Whether the gradients of a_x and a_h are one.
  bool one_gradient() const { return sums_terms(); }
  /// Whether the CPU's backward pass reads no gates: it reads an LSTM's normalised summed inputs anyway, and makes the gates anew from them.
  bool makes_gates_anew() const { return cell == Cell::lstm && (norm == TermNorm::terms || norm == TermNorm::gates); }
  /// Runs of a row of a_x (or a_h, or their sum) that have statistics of their own.
  int64_t segments() const { return norm == TermNorm::terms ? (cell == Cell::gru ? 2 : 1) : norm == TermNorm::gates ? 4 : 0; }
  /// Numbers per row that say how it was normalised: x-hat = (x - mean) rstd + rest, for the segments of a_x, those of a_h (terms only), and c.
  int64_t statistics() const {
    const bool row_c = normalise_c && norm != TermNorm::columns;
    return 3 * (segments() * (norm == TermNorm::terms ? 2 : 1) + (row_c ? 1 : 0));
  }
};

struct Steps {
  const int64_t *offset, *alive;
  int64_t first, last;  // those to walk: [first, last)
  int64_t batch;        // sequences
};

/// An array over time from row `origin` on; or, `rolling`, room for so many steps, which later steps overwrite.
template <class T>
struct OverTime {
  T* data = nullptr;
  int64_t origin = 0;
  int64_t rolling = 0;

  T* row(const Steps& steps, int64_t step, int64_t row, int64_t width) const {
    return data ? data + ((rolling ? step % rolling * steps.batch : steps.offset[step] - origin) + row) * width : nullptr;
  }
};

/// Of a normaliser over the sequences: a row for each step, as in ChannelNorm. Given statistics have neither shift nor var.
template <class T>
struct ColumnStatistics {
  T *mean = nullptr, *shift = nullptr, *var = nullptr, *rstd = nullptr;
};

template <class T>
struct RecurrentParts {
  const T *bias = nullptr,
          *bias_h = nullptr;  // [G H]: what stands outside the product with r (b_ih, and b_hh where it may); and, GRU, inside (n only)
  const T *gain_ih = nullptr, *gain_hh = nullptr, *gain_c = nullptr, *bias_c = nullptr;
};

template <class T>
struct RecurrentForward {
  RecurrentSpec spec;
  Steps steps;
  RecurrentParts<T> parts;
  const Packed<T>* weight = nullptr;  // W_hh^T [H, G H]
  bool from_zero = false;             // h before step 0 is zeros

  // Where the walk is to multiply the inputs too, so that a_x is still in a cache when the cell reads it; else weight_ih is null and a_x is there.
  // Only the CPU does, and not where spec.norm is columns.
  OverTime<const T> x;                   // [C]
  const Packed<T>* weight_ih = nullptr;  // W_ih^T [C, G H]
  int64_t input_rows = 0;                // steps are taken together for this until they have so many rows, unless one at a time is better

  T *h = nullptr, *c = nullptr;  // [batch, H]: the state, updated in place
  OverTime<T> a_x;               // [G H], W_ih x, plus parts.bias where spec.norm is none
  OverTime<T> a_h;               // [G H], W_hh h; null where spec.sums_terms()
  OverTime<T> gates;             // [G H], out: the gates, in place of a_x where nobody wants it (null: RNN, whose gate is y, or nobody wants them)
  OverTime<T> raw_c, y;          // [H], out: c before K (null if nobody wants it) and h
  OverTime<T> n_term;            // [H], out: GRU's R(a_h) + b_hh of n, where spec.norm is none (null if nobody wants it)
  OverTime<T> statistics;        // [spec.statistics()], out
  ColumnStatistics<T> x_columns, h_columns, c_columns;
};

/// Sums over rows and steps, side by side.
struct RecurrentSums {
  explicit RecurrentSums(const RecurrentSpec& spec);
  int64_t bias, n_bias, gain_ih, gain_hh, gain_c, bias_c;  // where each begins; -1: there is none
  int64_t count;
};

/// Most sets of partial sums that a pass has.
inline constexpr int64_t kSumParts = 16;

template <class T>
struct RecurrentBackward {
  RecurrentSpec spec;
  Steps steps;  // walked from last - 1 down to first
  RecurrentParts<T> parts;
  const Packed<T>* weight = nullptr;  // W_hh [G H, H]
  bool to_start = false;              // whether the gradient of h before step 0 is wanted

  const T *h0 = nullptr, *c0 = nullptr;                             // [batch, H]
  OverTime<const T> a_x, a_h, gates, raw_c, y, n_term, statistics;  // as forward left them
  ColumnStatistics<const T> x_columns, h_columns, c_columns;

  OverTime<const T> dy;            // [H]
  T *dh = nullptr, *dc = nullptr;  // [batch, H]: gradient of the state, updated in place
  OverTime<T> da_x, da_h;          // [G H], out; da_h is null where spec.one_gradient()

  // Where the walk is to multiply for the gradients of the weights and of x too (in_walk > 0): for so many steps at a time, for which da_x and da_h
  // are room. Only the CPU does, and not where spec.norm is columns.
  int64_t in_walk = 0;
  bool goes_on = false;                  // dw_ih and dw_hh have the gradients from later steps, and grow
  OverTime<const T> x;                   // [C]
  int64_t inputs = 0;                    // C
  const Packed<T>* weight_ih = nullptr;  // W_ih [G H, C]; null: nobody wants dx
  OverTime<T> dx;                        // [C], out
  bool from_zero = false;                // h before step 0 is zeros
  T *dw_ih = nullptr, *dw_hh = nullptr;  // [G H, C], [G H, H], out (null: nobody wants them)

  T* sums = nullptr;  // [RecurrentSums.count] grows by the gradients of biases and gains; null: nobody wants them
  // Where one pass is several calls, from its last steps to its first: [kSumParts, RecurrentSums.count], zeros before the first of them, so that the
  // CPU keeps partial sums there and adds them up now and then and in the call that has step 0. Null: it does so in every call.
  T* sum_parts = nullptr;
};

/// Running statistics of a normaliser over the sequences, moved by the statistics of all steps, one after the other: step s moves row min(s, rows -
/// 1). running = (1 - momentum) running + momentum batch, var unbiased. A step whose statistics are not finite is left out whole.
template <class T>
struct RunningColumns {
  Steps steps;
  int64_t width = 0, rows = 0;
  double momentum = 0.1;
  const T *batch_mean = nullptr, *batch_var = nullptr;  // [steps, width], as forward left them
  T *mean = nullptr, *var = nullptr;                    // [rows, width]
};

template <class T>
struct RecurrentKernels {
  virtual ~RecurrentKernels() = default;
  /// Everything but the big products with gemm() gives the same bits for every thread count.
  virtual void forward(const RecurrentForward<T>& work) const = 0;
  virtual void backward(const RecurrentBackward<T>& work) const = 0;
  virtual void move_running(const RunningColumns<T>& work) const = 0;
};

}  // namespace lamina::kernels
