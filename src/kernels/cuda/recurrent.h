#pragma once
// The steps of a recurrent walk on CUDA: what a launch gets, and the launches. recurrent.cu walks.

#include "kernels/cuda/device/recurrent.cuh"

namespace lamina::kernels::cuda {

/// Gains and biases, as RecurrentParts.
template <class T>
struct StepParts {
  dptr<const T> bias, bias_h, gain_ih, gain_hh, gain_c, bias_c;
};

/// What a kernel needs to know of a RecurrentSpec.
struct StepSpec {
  explicit StepSpec(const RecurrentSpec& spec)
      : hidden(spec.hidden),
        width(spec.width()),
        eps(spec.eps),
        statistics(static_cast<int>(spec.statistics())),
        normalise_c(spec.normalise_c),
        carry(spec.carry),
        centre(spec.centre),
        given(spec.given) {}

  int64_t hidden, width;
  double eps;
  int statistics;  // numbers a row
  bool normalise_c, carry, centre, given;
  bool packs = false;  // every row begins at a multiple of 16 bytes
};

/// A step forward: pointers to its first row, as in RecurrentForward.
template <class T>
struct ForwardStep {
  StepSpec spec;
  int64_t rows;
  StepParts<T> parts;
  dptr<const T> a_x, a_h;
  dptr<T> gates, h, c, raw_c, y, n_term, statistics;
};

/// A step backward: pointers to its first row, as in RecurrentBackward. What the sums of biases and gains are made from is left for column_sums:
/// pre_x, the gradient of the summed inputs outside GRU's r, pre_n, that of n's inside it, and dk, that of K(c).
template <class T>
struct BackwardStep {
  StepSpec spec;
  int64_t rows;
  StepParts<T> parts;
  dptr<const T> a_x, a_h, gates, raw_c, y, n_term, statistics, c_before, h_before;
  dptr<const T> statistics_before;  // of c before; null where that was not normalised
  dptr<const T> dy;
  dptr<T> dh, dc, da_x, da_h;
  dptr<T> pre_x, pre_n, dk;  // pre_x and pre_n may be in da_x and da_h; dk may be null
  int64_t pre_n_width;       // from row to row
  bool keep_pre;             // pre_x and pre_n are places of their own
};

/// Statistics over the sequences of a step, as ColumnStatistics.
template <class T>
struct StepColumns {
  dptr<T> mean, shift, var, rstd;
};

/// Where sums of a backward step go; as RecurrentSums says.
template <class T>
struct StepSums {
  dptr<T> sums;  // null: nobody wants them
  int64_t bias, n_bias, gain_ih, gain_hh, gain_c, bias_c;
};

/// What biases' and gains' gradients are summed from, over rows of one run of steps.
template <class T>
struct SumTerms {
  StepSpec spec;
  int64_t rows;
  bool gru, terms, by_gate;  // the cell, and TermNorm::terms or ::gates
  dptr<const T> pre_x, pre_n, dk, a_x, a_h, raw_c, statistics;
  int64_t pre_n_width;
};

template <class T>
void forward_rows(const Op& op, const RecurrentSpec& spec, const ForwardStep<T>& step);
template <class T>
void backward_rows(const Op& op, const RecurrentSpec& spec, const BackwardStep<T>& step);
template <class T>
void column_sums(const Op& op, const SumTerms<T>& terms, const StepSums<T>& sums);

template <class T>
void forward_columns(const Op& op, Cell cell, const ForwardStep<T>& step, const StepColumns<T>& x, const StepColumns<T>& h, const StepColumns<T>& c);
template <class T>
void backward_columns(const Op& op, Cell cell, const BackwardStep<T>& step, const StepColumns<const T>& x, const StepColumns<const T>& h,
                      const StepColumns<const T>& c, const StepSums<T>& sums);

/// As RecurrentKernels::move_running.
template <class T>
void move_running(const RunningColumns<T>& work);

/// f.operator()<cell>().
template <class F>
void with_cell(Cell cell, F&& f) {
  switch (cell) {
    case Cell::lstm: return f.template operator()<Cell::lstm>();
    case Cell::gru: return f.template operator()<Cell::gru>();
    case Cell::rnn: return f.template operator()<Cell::rnn>();
  }
}

/// f.operator()<cell, norm>() for steps whose rows have nothing to do with one another.
template <class F>
void with_rows(const RecurrentSpec& spec, F&& f) {
  if (spec.norm == TermNorm::gates) return f.template operator()<Cell::lstm, TermNorm::gates>();
  with_cell(spec.cell, [&]<Cell cell>() {
    if (spec.norm == TermNorm::terms) return f.template operator()<cell, TermNorm::terms>();
    f.template operator()<cell, TermNorm::none>();
  });
}

/// Launches a step of rows. Where statistics bind the columns of a row together it belongs to one block; else to several. `held` is for threads with
/// one pack of columns, which keep what they work out in registers.
template <class T, class Step>
void launch_rows(const Op& op, bool bound, void (*held)(Step), void (*looping)(Step), const Step& step) {
  constexpr int64_t vec = Pack<T>::size, few = 128;
  const int64_t packs = (step.spec.hidden + vec - 1) / vec, most = bound ? RowThreads::most : few;
  const int64_t threads = packs < most ? (packs + warp_size - 1) / warp_size * warp_size : most;
  const dim3 grid(blocks_for(step.rows, 1, INT32_MAX), bound ? 1 : blocks_for(packs, threads, 65535));
  launch(op, packs <= threads * int64_t{grid.y} ? held : looping, grid, static_cast<unsigned>(threads), 0, stream(), step);
}

}  // namespace lamina::kernels::cuda
