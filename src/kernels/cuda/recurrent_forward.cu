// A step of a recurrent layer, forward, where nothing or each row is normalised: statistics, gates, cell and output in one kernel, a row for a block.

#include "kernels/cuda/recurrent.h"

namespace lamina::kernels::cuda {

namespace {

/// The summed inputs of a row: x(gate) and h(gate) stand outside and inside the product with GRU's r; both together in x where they are added up.
template <class T, Cell cell, TermNorm norm, bool kHeld>
class ForwardInputs {
 public:
  using S = Segments<cell, norm>;
  static constexpr int vec = Pack<T>::size;

  __device__ ForwardInputs(const ForwardStep<T>& step, const RowColumns<T, kHeld>& columns, int64_t row)
      : parts_(step.parts),
        columns_(columns),
        terms_(columns, step.a_x + row * step.spec.width, S::two ? dptr<const T>(step.a_h + row * step.spec.width) : dptr<const T>(nullptr)) {
    if constexpr (S::normalised) {
      terms_.measure(step.spec.centre, step.spec.eps, x_hat_);
      if (threadIdx.x == 0)
        for (int run = 0; run < S::runs; ++run) x_hat_[run].put(step.statistics + row * step.spec.statistics + 3 * run);
    }
  }

  __device__ void x(int gate, int64_t j, T (&values)[vec]) const {
    terms_.x(gate, j, values);
    if constexpr (S::normalised) {
      T gain[vec], bias[vec];
      columns_.get((norm == TermNorm::gates ? parts_.gain_hh : parts_.gain_ih) + gate * columns_.hidden, j, gain);
      columns_.get(parts_.bias + gate * columns_.hidden, j, bias);
      for (int k = 0; k < vec; ++k) values[k] = std::fma(x_hat_[S::of(gate)](values[k]), gain[k], bias[k]);
    }
  }
  __device__ void h(int gate, int64_t j, T (&values)[vec]) const {
    terms_.h(gate, j, values);
    if constexpr (S::normalised) {
      T gain[vec];
      columns_.get(parts_.gain_hh + gate * columns_.hidden, j, gain);
      for (int k = 0; k < vec; ++k) values[k] = x_hat_[S::count + S::of(gate)](values[k]) * gain[k];
    }
    if (cell != Cell::gru || gate != 2 || parts_.bias_h == nullptr) return;
    T bias[vec];
    columns_.get(parts_.bias_h + 2 * columns_.hidden, j, bias);
    for (int k = 0; k < vec; ++k) values[k] += bias[k];
  }
  __device__ void sum(int gate, int64_t j, T (&values)[vec]) const {
    x(gate, j, values);
    if constexpr (S::two) {
      T more[vec];
      h(gate, j, more);
      for (int k = 0; k < vec; ++k) values[k] += more[k];
    }
  }

 private:
  StepParts<T> parts_;
  const RowColumns<T, kHeld>& columns_;
  SummedInputs<T, cell, norm, kHeld> terms_;
  Normaliser<T> x_hat_[S::runs];
};

template <class T, TermNorm norm, bool kHeld>
__device__ void lstm_row(const ForwardStep<T>& step, const RowColumns<T, kHeld>& columns, int64_t row) {
  constexpr int vec = Pack<T>::size;
  const int64_t hidden = columns.hidden;
  const ForwardInputs<T, Cell::lstm, norm, kHeld> in(step, columns, row);
  const dptr<T> gates = step.gates + row * 4 * hidden, c_row = step.c + row * hidden, h_row = step.h + row * hidden, y_row = step.y + row * hidden;
  T c_held[vec] = {}, o_held[vec] = {};
  columns.each([&](int64_t j) {
    T i[vec], f[vec], g[vec], o[vec], c[vec];
    in.sum(0, j, i), in.sum(1, j, f), in.sum(2, j, g), in.sum(3, j, o);
    columns.get(c_row, j, c);
    for (int k = 0; k < vec; ++k) {
      i[k] = sigmoid(i[k]), f[k] = sigmoid(f[k]), g[k] = std::tanh(g[k]), o[k] = sigmoid(o[k]);
      c[k] = std::fma(f[k], c[k], i[k] * g[k]);
    }
    columns.put(gates, j, i), columns.put(gates + hidden, j, f), columns.put(gates + 2 * hidden, j, g), columns.put(gates + 3 * hidden, j, o);
    if (step.raw_c != nullptr) columns.put(step.raw_c + row * hidden, j, c);
    if constexpr (kHeld)
      for (int k = 0; k < vec; ++k) c_held[k] = c[k], o_held[k] = o[k];
    else
      columns.put(c_row, j, c);
  });
  const auto c_at = [&](int64_t j, T(&values)[vec]) {
    if constexpr (kHeld)
      for (int k = 0; k < vec; ++k) values[k] = c_held[k];
    else
      columns.get(c_row, j, values);
  };
  Normaliser<T> c_hat[1];
  if (step.spec.normalise_c) {
    const double counts[1] = {static_cast<double>(hidden)};
    measure_runs<T>(
        step.spec.centre, step.spec.eps, counts,
        [&](auto f) {
          columns.each([&](int64_t j) {
            T c[vec];
            c_at(j, c);
            f(0, c, columns.count(j));
          });
        },
        c_hat);
    if (threadIdx.x == 0) c_hat[0].put(step.statistics + (row + 1) * step.spec.statistics - 3);
  }
  columns.each([&](int64_t j) {
    T c[vec], kept[vec], h[vec];
    c_at(j, c);
    if constexpr (kHeld)
      for (int k = 0; k < vec; ++k) h[k] = o_held[k];
    else
      columns.get(gates + 3 * hidden, j, h);
    for (int k = 0; k < vec; ++k) kept[k] = c[k];
    if (step.spec.normalise_c) {
      T gain[vec], bias[vec];
      columns.get(step.parts.gain_c, j, gain), columns.get(step.parts.bias_c, j, bias);
      for (int k = 0; k < vec; ++k) c[k] = std::fma(c_hat[0](c[k]), gain[k], bias[k]);
    }
    for (int k = 0; k < vec; ++k) {
      h[k] *= std::tanh(c[k]);
      if (step.spec.carry) kept[k] = c[k];
    }
    columns.put(c_row, j, kept);
    columns.put(h_row, j, h), columns.put(y_row, j, h);
  });
}

template <class T, TermNorm norm, bool kHeld>
__device__ void gru_row(const ForwardStep<T>& step, const RowColumns<T, kHeld>& columns, int64_t row) {
  constexpr int vec = Pack<T>::size;
  const int64_t hidden = columns.hidden;
  const ForwardInputs<T, Cell::gru, norm, kHeld> in(step, columns, row);
  const dptr<T> gates = step.gates + row * 3 * hidden, h_row = step.h + row * hidden, y_row = step.y + row * hidden;
  columns.each([&](int64_t j) {
    T reset[vec], z[vec], n[vec], inside[vec], h[vec];
    in.sum(0, j, reset), in.sum(1, j, z), in.x(2, j, n), in.h(2, j, inside);
    columns.get(h_row, j, h);
    for (int k = 0; k < vec; ++k) {
      reset[k] = sigmoid(reset[k]), z[k] = sigmoid(z[k]);
      n[k] = std::tanh(std::fma(reset[k], inside[k], n[k]));
      h[k] = std::fma(z[k], h[k], (T(1) - z[k]) * n[k]);
    }
    columns.put(gates, j, reset), columns.put(gates + hidden, j, z), columns.put(gates + 2 * hidden, j, n);
    if (step.n_term != nullptr) columns.put(step.n_term + row * hidden, j, inside);
    columns.put(h_row, j, h), columns.put(y_row, j, h);
  });
}

template <class T, TermNorm norm, bool kHeld>
__device__ void rnn_row(const ForwardStep<T>& step, const RowColumns<T, kHeld>& columns, int64_t row) {
  constexpr int vec = Pack<T>::size;
  const ForwardInputs<T, Cell::rnn, norm, kHeld> in(step, columns, row);
  const dptr<T> h_row = step.h + row * columns.hidden, y_row = step.y + row * columns.hidden;
  columns.each([&](int64_t j) {
    T h[vec];
    in.sum(0, j, h);
    for (int k = 0; k < vec; ++k) h[k] = std::tanh(h[k]);
    columns.put(h_row, j, h), columns.put(y_row, j, h);
  });
}

template <class T, Cell cell, TermNorm norm, bool kHeld>
__global__ void __launch_bounds__(RowThreads::most) forward_step(ForwardStep<T> step) {
  const RowColumns<T, kHeld> columns(step.spec.hidden, step.spec.packs);
  for (int64_t row = blockIdx.x; row < step.rows; row += gridDim.x) {
    if constexpr (cell == Cell::lstm) lstm_row<T, norm, kHeld>(step, columns, row);
    if constexpr (cell == Cell::gru) gru_row<T, norm, kHeld>(step, columns, row);
    if constexpr (cell == Cell::rnn) rnn_row<T, norm, kHeld>(step, columns, row);
  }
}

}  // namespace

template <class T>
void forward_rows(const Op& op, const RecurrentSpec& spec, const ForwardStep<T>& step) {
  with_rows(spec, [&]<Cell cell, TermNorm norm>() {
    launch_rows<T>(op.at("forward_step"), Segments<cell, norm>::normalised || spec.normalise_c, forward_step<T, cell, norm, true>,
                   forward_step<T, cell, norm, false>, step);
  });
}
template void forward_rows(const Op&, const RecurrentSpec&, const ForwardStep<float>&);
template void forward_rows(const Op&, const RecurrentSpec&, const ForwardStep<double>&);

}  // namespace lamina::kernels::cuda
