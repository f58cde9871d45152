// A step of a recurrent layer with statistics over its sequences. Everything in it belongs to one column of H, so a block takes a few columns of all
// sequences through the whole cell, normalisers included, in one kernel.

#include "kernels/cuda/device/step_columns.cuh"
#include "kernels/cuda/recurrent.h"

namespace lamina::kernels::cuda {

namespace {

template <class T>
__device__ void put(const StepColumns<T>& to, int64_t at, const ColumnMoments<T>& moments) {
  to.mean[at] = moments.s.mean, to.shift[at] = moments.s.shift, to.var[at] = moments.var, to.rstd[at] = moments.s.rstd;
}
template <class T, class S>
__device__ Normaliser<T> kept(const StepColumns<S>& from, int64_t at) {
  RowStatistics<T> s;
  s.mean = from.mean[at], s.rstd = from.rstd[at];
  if (from.shift != nullptr) s.shift = from.shift[at];
  return Normaliser<T>::of(s);
}

template <Cell cell>
constexpr int gate_count = Segments<cell, TermNorm::none>::gates;

/// The normaliser and gain and bias of a column.
template <class T>
struct Affine {
  __device__ T operator()(T x) const { return std::fma(x_hat(x), gain, bias); }
  Normaliser<T> x_hat;
  T gain = 1, bias = 0;
};

// n columns' normalisers, H apart: measured, or given. f(gate, row) is a value.
template <class T, int n, class F>
__device__ void normalise(const StepSpec& spec, int64_t rows, int64_t j, bool inside, const StepColumns<T> (&to)[n], const int64_t (&at)[n], F value,
                          Affine<T> (&result)[n]) {
  if (spec.given) {
#pragma unroll
    for (int i = 0; i < n; ++i)
      if (inside) result[i].x_hat = kept<T>(to[i], at[i] + j);
    return;
  }
  ColumnMoments<T> moments[n];
  measure_columns<T>(
      spec.eps, static_cast<double>(rows),
      [&](auto f) {
        ColumnThreads::each(rows, inside, [&](int64_t row) {
#pragma unroll
          for (int i = 0; i < n; ++i) f(i, value(i, row));
        });
      },
      [&](int i) { return inside ? value(i, 0) : T(0); }, moments);
#pragma unroll
  for (int i = 0; i < n; ++i) {
    result[i].x_hat = Normaliser<T>::of(moments[i].s);
    if (inside && ColumnThreads::slice() == 0) put(to[i], at[i] + j, moments[i]);
  }
}

/// How the columns j of all gates of a_x, then of a_h, are normalised.
template <class T, Cell cell>
__device__ void normalise_inputs(const ForwardStep<T>& step, const StepColumns<T>& x, const StepColumns<T>& h, int64_t j, bool inside,
                                 Affine<T> (&in)[2 * gate_count<cell>]) {
  constexpr int gates = gate_count<cell>;
  const int64_t hidden = step.spec.hidden, width = step.spec.width;
  StepColumns<T> to[2 * gates];
  int64_t at[2 * gates];
#pragma unroll
  for (int gate = 0; gate < gates; ++gate) {
    to[gate] = x, to[gates + gate] = h;
    at[gate] = at[gates + gate] = gate * hidden;
  }
  normalise<T>(
      step.spec, step.rows, j, inside, to, at,
      [&](int i, int64_t row) {
        const T value = (i < gates ? step.a_x : step.a_h)[row * width + (i < gates ? i : i - gates) * hidden + j];
        return value;
      },
      in);
  if (!inside) return;
  for (int gate = 0; gate < gates; ++gate) {
    in[gate].gain = step.parts.gain_ih[gate * hidden + j], in[gate].bias = step.parts.bias[gate * hidden + j];
    in[gates + gate].gain = step.parts.gain_hh[gate * hidden + j];
    if (cell == Cell::gru && step.parts.bias_h != nullptr) in[gates + gate].bias = step.parts.bias_h[gate * hidden + j];
  }
}

/// The cell of one row: all of it but, of an LSTM, what comes after c.
template <class T, Cell cell>
__device__ void cell_forward(const ForwardStep<T>& step, const Affine<T> (&in)[2 * gate_count<cell>], int64_t row, int64_t j) {
  constexpr int gates = gate_count<cell>;
  const int64_t hidden = step.spec.hidden, first = row * step.spec.width + j, at = row * hidden + j;
  T outside[gates], within[gates];
#pragma unroll
  for (int gate = 0; gate < gates; ++gate)
    outside[gate] = in[gate](step.a_x[first + gate * hidden]), within[gate] = in[gates + gate](step.a_h[first + gate * hidden]);
  const auto put_gate = [&](int gate, T value) { step.gates[first + gate * hidden] = value; };
  if constexpr (cell == Cell::lstm) {
    const T i = sigmoid(outside[0] + within[0]), f = sigmoid(outside[1] + within[1]), g = std::tanh(outside[2] + within[2]);
    put_gate(0, i), put_gate(1, f), put_gate(2, g), put_gate(3, sigmoid(outside[3] + within[3]));
    const T before = step.c[at], value = std::fma(f, before, i * g);
    step.c[at] = value;
    if (step.raw_c != nullptr) step.raw_c[at] = value;
  } else {
    T value;
    if constexpr (cell == Cell::gru) {
      const T reset = sigmoid(outside[0] + within[0]), z = sigmoid(outside[1] + within[1]), n = std::tanh(std::fma(reset, within[2], outside[2]));
      put_gate(0, reset), put_gate(1, z), put_gate(2, n);
      if (step.n_term != nullptr) step.n_term[at] = within[2];
      const T before = step.h[at];
      value = std::fma(z, before, (T(1) - z) * n);
    } else {
      value = std::tanh(outside[0] + within[0]);
    }
    step.h[at] = value, step.y[at] = value;
  }
}

/// h = s(o) tanh(K(c)).
template <class T>
__device__ void output_forward(const ForwardStep<T>& step, const StepColumns<T>& c, int64_t j, bool inside) {
  const int64_t hidden = step.spec.hidden, width = step.spec.width;
  const StepColumns<T> to[1] = {c};
  const int64_t at[1] = {0};
  Affine<T> k[1];
  normalise<T>(
      step.spec, step.rows, j, inside, to, at,
      [&](int, int64_t row) {
        const T value = step.c[row * hidden + j];
        return value;
      },
      k);
  if (inside) k[0].gain = step.parts.gain_c[j], k[0].bias = step.parts.bias_c[j];
  ColumnThreads::each(step.rows, inside, [&](int64_t row) {
    const T o = step.gates[row * width + 3 * hidden + j], value = o * std::tanh(k[0](step.c[row * hidden + j]));
    step.h[row * hidden + j] = value, step.y[row * hidden + j] = value;
  });
}

template <class T, Cell cell>
__global__ void __launch_bounds__(ColumnThreads::block, 1)
    forward_by_columns(ForwardStep<T> step, StepColumns<T> x, StepColumns<T> h, StepColumns<T> c) {
  const int64_t j = int64_t{blockIdx.x} * ColumnThreads::columns + ColumnThreads::column();
  const bool inside = j < step.spec.hidden;
  Affine<T> in[2 * gate_count<cell>];
  normalise_inputs<T, cell>(step, x, h, j, inside, in);
  ColumnThreads::each(step.rows, inside, [&](int64_t row) { cell_forward<T, cell>(step, in, row, j); });
  if constexpr (cell == Cell::lstm) {
    __syncthreads();  // row 0 of c is there for all slices
    output_forward(step, c, j, inside);
  }
}

// Backward through a column's normaliser: sums over its rows of the gradient p of its result, and of p x-hat.
template <class T>
struct ThroughColumn {
  __device__ void finish(const StepSpec& spec, double count, double sum_p, double sum_p_hat) {
    given = spec.given;
    if (given) return;
    mean = static_cast<T>(sum_p / count), mean_hat = static_cast<T>(sum_p_hat / count);
  }
  __device__ T gradient(const Affine<T>& at, T p, T x) const {
    return at.gain * at.x_hat.rstd * (given ? p : std::fma(-at.x_hat(x), mean_hat, p - mean));
  }
  T mean = 0, mean_hat = 0;
  bool given = false;
};

template <class T>
__device__ void add(const StepSums<T>& to, int64_t at, double value) {
  const T before = to.sums[at];
  to.sums[at] = before + static_cast<T>(value);
}

/// The gradients of biases and gains, from the sums of backward_by_columns.
template <Cell cell, class T, int n>
__device__ void add_terms(const StepSums<T>& to, int64_t hidden, int64_t j, const double (&totals)[n]) {
  constexpr int gates = gate_count<cell>;
  for (int gate = 0; gate < gates; ++gate) {
    const int64_t at = gate * hidden + j;
    add(to, to.bias + at, totals[3 * gate]), add(to, to.gain_ih + at, totals[3 * gate + 1]), add(to, to.gain_hh + at, totals[3 * gate + 2]);
  }
  if (cell == Cell::gru) add(to, to.n_bias + j, totals[3 * gates]);
}

/// How the columns j of all gates of a_x and a_h were normalised.
template <class T, int gates>
__device__ void load_terms(const BackwardStep<T>& step, const StepColumns<const T>& x, const StepColumns<const T>& h, int64_t j,
                           Affine<T> (&in_x)[gates], Affine<T> (&in_h)[gates]) {
  for (int gate = 0; gate < gates; ++gate) {
    const int64_t at = gate * step.spec.hidden + j;
    in_x[gate].x_hat = kept<T>(x, at), in_h[gate].x_hat = kept<T>(h, at);
    in_x[gate].gain = step.parts.gain_ih[at], in_h[gate].gain = step.parts.gain_hh[at];
  }
}

/// From dh to the output gate and, in the place of dh, to the gradient dk of K(c); the sums over a column of dk, and of dk times K's x-hat.
template <class T>
__device__ void through_output(const BackwardStep<T>& step, const Affine<T>& k, int64_t j, bool inside, double (&totals)[2]) {
  const int64_t hidden = step.spec.hidden, width = step.spec.width;
  T parts[2] = {};
  ColumnThreads::each(step.rows, inside, [&](int64_t row) {
    const int64_t at = row * hidden + j;
    const T c_at = step.raw_c[at], o = step.gates[row * width + 3 * hidden + j], dy = step.dy[at], more = step.dh[at];
    const T t = std::tanh(k(c_at)), dh = dy + more, dk = dh * o * tanh_slope(t);
    step.da_x[row * width + 3 * hidden + j] = dh * t * sigmoid_slope(o);
    step.dh[at] = dk;
    parts[0] += dk;
    parts[1] = std::fma(dk, k.x_hat(c_at), parts[1]);
  });
  ColumnThreads::sum(parts, totals);
}

/// Of one row: p, the gradients of the summed inputs of each gate, those of n outside GRU's r; and `within`, that of n inside it.
template <class T, Cell cell>
__device__ void cell_backward(const BackwardStep<T>& step, const ThroughColumn<T>& through_c, const Affine<T>& k, int64_t row, int64_t j,
                              T (&p)[gate_count<cell>], T& within) {
  const int64_t hidden = step.spec.hidden, at = row * hidden + j, first = row * step.spec.width + j;
  if constexpr (cell == Cell::lstm) {
    const T i = step.gates[first], f = step.gates[first + hidden], g = step.gates[first + 2 * hidden], before = step.c_before[at], dk = step.dh[at];
    const T old = step.dc[at], dc = old + through_c.gradient(k, dk, step.raw_c[at]);
    p[0] = dc * g * sigmoid_slope(i), p[1] = dc * before * sigmoid_slope(f), p[2] = dc * i * tanh_slope(g);
    p[3] = step.da_x[first + 3 * hidden];
    step.dc[at] = dc * f;
  } else if constexpr (cell == Cell::gru) {
    const T reset = step.gates[first], z = step.gates[first + hidden], n = step.gates[first + 2 * hidden], dy = step.dy[at], more = step.dh[at];
    const T dh = dy + more, before = step.h_before[at], n_term = step.n_term[at];
    p[2] = dh * (T(1) - z) * tanh_slope(n);
    p[0] = p[2] * n_term * sigmoid_slope(reset), p[1] = dh * (before - n) * sigmoid_slope(z);
    within = p[2] * reset;
    step.da_h[first + 2 * hidden] = within;
    step.dh[at] = dh * z;
  } else {
    const T y = step.y[at], dy = step.dy[at], more = step.dh[at];
    p[0] = (dy + more) * tanh_slope(y);
  }
}

template <class T, Cell cell>
__global__ void __launch_bounds__(ColumnThreads::block, 1)
    backward_by_columns(BackwardStep<T> step, StepColumns<const T> x, StepColumns<const T> h, StepColumns<const T> c, StepSums<T> to) {
  constexpr int gates = gate_count<cell>, last = gates - 1;
  constexpr bool gru = cell == Cell::gru;
  const StepSpec& spec = step.spec;
  const int64_t hidden = spec.hidden, width = spec.width, j = int64_t{blockIdx.x} * ColumnThreads::columns + ColumnThreads::column();
  const bool inside = j < hidden, adds = to.sums != nullptr && inside && ColumnThreads::slice() == 0;
  const double count = static_cast<double>(step.rows);
  Affine<T> in_x[gates], in_h[gates], k;
  if (inside) load_terms(step, x, h, j, in_x, in_h);
  ThroughColumn<T> through_c;
  if constexpr (cell == Cell::lstm) {
    if (inside) k = {kept<T>(c, j), step.parts.gain_c[j], step.parts.bias_c[j]};
    double totals[2];
    through_output(step, k, j, inside, totals);
    through_c.finish(spec, count, totals[0], totals[1]);
    if (adds) add(to, to.bias_c + j, totals[0]), add(to, to.gain_c + j, totals[1]);
  }

  // Of each gate: p, p times a_x's x-hat, and, with p inside GRU's r, times a_h's; then that p.
  T parts[3 * gates + 1] = {};
  ColumnThreads::each(step.rows, inside, [&](int64_t row) {
    T p[gates], within = 0;
    cell_backward<T, cell>(step, through_c, k, row, j, p, within);
#pragma unroll
    for (int gate = 0; gate < gates; ++gate) {
      const int64_t at = row * width + gate * hidden + j;
      step.da_x[at] = p[gate];
      parts[3 * gate] += p[gate];
      parts[3 * gate + 1] = std::fma(p[gate], in_x[gate].x_hat(step.a_x[at]), parts[3 * gate + 1]);
      parts[3 * gate + 2] = std::fma(gru && gate == last ? within : p[gate], in_h[gate].x_hat(step.a_h[at]), parts[3 * gate + 2]);
    }
    parts[3 * gates] += within;
  });
  double totals[3 * gates + 1];
  ColumnThreads::sum(parts, totals);
  ThroughColumn<T> through_x[gates], through_h[gates];
#pragma unroll
  for (int gate = 0; gate < gates; ++gate) {
    through_x[gate].finish(spec, count, totals[3 * gate], totals[3 * gate + 1]);
    through_h[gate].finish(spec, count, totals[gru && gate == last ? 3 * gates : 3 * gate], totals[3 * gate + 2]);
  }
  if (adds) add_terms<cell>(to, hidden, j, totals);
  ColumnThreads::each(step.rows, inside, [&](int64_t row) {
#pragma unroll
    for (int gate = 0; gate < gates; ++gate) {
      const int64_t at = row * width + gate * hidden + j;
      const T p = step.da_x[at], p_h = gru && gate == last ? T(step.da_h[at]) : p;
      step.da_x[at] = through_x[gate].gradient(in_x[gate], p, step.a_x[at]);
      step.da_h[at] = through_h[gate].gradient(in_h[gate], p_h, step.a_h[at]);
    }
  });
}

}  // namespace

template <class T>
void forward_columns(const Op& op, Cell cell, const ForwardStep<T>& step, const StepColumns<T>& x, const StepColumns<T>& h, const StepColumns<T>& c) {
  with_cell(cell, [&]<Cell known>() {
    launch(op.at("forward_by_columns"), forward_by_columns<T, known>, blocks_for(step.spec.hidden, ColumnThreads::columns, INT32_MAX),
           ColumnThreads::block, 0, stream(), step, x, h, c);
  });
}

template <class T>
void backward_columns(const Op& op, Cell cell, const BackwardStep<T>& step, const StepColumns<const T>& x, const StepColumns<const T>& h,
                      const StepColumns<const T>& c, const StepSums<T>& sums) {
  with_cell(cell, [&]<Cell known>() {
    launch(op.at("backward_by_columns"), backward_by_columns<T, known>, blocks_for(step.spec.hidden, ColumnThreads::columns, INT32_MAX),
           ColumnThreads::block, 0, stream(), step, x, h, c, sums);
  });
}

#define LAMINA_INSTANTIATE(T)                                                                                                                 \
  template void forward_columns(const Op&, Cell, const ForwardStep<T>&, const StepColumns<T>&, const StepColumns<T>&, const StepColumns<T>&); \
  template void backward_columns(const Op&, Cell, const BackwardStep<T>&, const StepColumns<const T>&, const StepColumns<const T>&,           \
                                 const StepColumns<const T>&, const StepSums<T>&);
LAMINA_INSTANTIATE(float)
LAMINA_INSTANTIATE(double)
#undef LAMINA_INSTANTIATE

}  // namespace lamina::kernels::cuda
