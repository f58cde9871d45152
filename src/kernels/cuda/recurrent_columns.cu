// A step of a recurrent layer with statistics over its sequences. Everything in it belongs to one column of H, so a block takes a few columns of all
// sequences through the whole cell, normalisers included, in one kernel.

#include "kernels/cuda/recurrent.h"

namespace lamina::kernels::cuda {

namespace {

/// A block has 8 columns (32 bytes of f32), each shared by 32 threads, which take every 32nd row.
struct ColumnThreads {
  static constexpr int columns = 8, slices = 32, block = columns * slices, warps = block / warp_size, in_warp = warp_size / columns;

  __device__ static int column() { return static_cast<int>(threadIdx.x) % columns; }
  __device__ static int slice() { return static_cast<int>(threadIdx.x) / columns; }

  /// Adds up in T within a warp, in double beyond; the same, to the bit, in all threads of a column.
  template <class T, int n>
  __device__ static void sum(const T (&parts)[n], double (&totals)[n]) {
    __shared__ shared_array<double, n * block / in_warp> of_warps;
    __syncthreads();  // the sums of the last call have been read
    const int warp = static_cast<int>(threadIdx.x) / warp_size;
    for (int i = 0; i < n; ++i) {
      T value = parts[i];
      for (int distance = columns; distance < warp_size; distance *= 2) value += __shfl_xor_sync(all_lanes, value, distance);
      if (slice() % in_warp == 0) of_warps[(i * warps + warp) * columns + column()] = static_cast<double>(value);
    }
    __syncthreads();
    for (int i = 0; i < n; ++i) {
      totals[i] = of_warps[i * warps * columns + column()];
      for (int other = 1; other < warps; ++other) totals[i] += of_warps[(i * warps + other) * columns + column()];
    }
  }

  __device__ static double largest(double value) {
    __shared__ shared_array<double, block> all;
    __syncthreads();
    all[threadIdx.x] = value;
    __syncthreads();
    for (int other = 0; other < slices; ++other) {
      const double theirs = all[other * columns + column()];
      if (theirs > value) value = theirs;
    }
    return value;
  }

  /// f(row) for the rows of this thread.
  template <class F>
  __device__ static void each(int64_t rows, bool inside, F f) {
    if (inside)
      for (int64_t row = slice(); row < rows; row += slices) f(row);
  }
};

template <class T>
struct ColumnMoments {
  RowStatistics<T> s;
  T var = 0;
};

/// Statistics of one of the columns that `each` shows, with values scaled by their largest first, and eps with them: see measure_scaled.
template <class T, class Each>
__device__ ColumnMoments<T> scaled_moments(double eps, double count, int of, const Each& each) {
  const auto each_value = [&](auto f) {
    each([&](int i, T value) {
      if (i == of) f(static_cast<double>(value));
    });
  };
  double scale = 0;
  each_value([&](double value) {
    if (std::fabs(value) > scale) scale = std::fabs(value);
  });
  scale = ColumnThreads::largest(scale);
  if (!(scale > 0) || scale == Bounds<T>::infinity) scale = 1;
  double part[1] = {}, total[1];
  each_value([&](double value) { part[0] += value / scale; });
  ColumnThreads::sum(part, total);
  const double mean = total[0] / count;
  part[0] = 0;
  each_value([&](double value) {
    const double d = value / scale - mean;
    part[0] += d * d;
  });
  ColumnThreads::sum(part, total);
  const double scaled_eps = std::sqrt(eps) / scale, deviation = scale * std::sqrt(total[0] / count + scaled_eps * scaled_eps);
  ColumnMoments<T> result;
  result.s.mean = static_cast<T>(mean * scale);
  result.s.shift = static_cast<T>(mean * scale - static_cast<double>(result.s.mean));
  result.var = static_cast<T>(total[0] / count * scale * scale);
  if (!(deviation <= 1 / Bounds<T>::least))
    result.s.rstd = Bounds<T>::not_a_number;
  else if (deviation >= Bounds<T>::least)
    result.s.rstd = static_cast<T>(1 / deviation);
  return result;
}

/// The statistics of n columns of a thread: each(f) calls f(column, value) for its rows, first(column) is the value in row 0, near which the mean is
/// looked for. In two passes, as channel statistics.
template <class T, int n, class Each, class First>
__device__ void measure_columns(double eps, double count, const Each& each, const First& first, ColumnMoments<T> (&result)[n]) {
  T origins[n], sums[n] = {};
  double offsets[n];
  for (int i = 0; i < n; ++i) origins[i] = first(i);
  each([&](int i, T value) { sums[i] += value - origins[i]; });
  ColumnThreads::sum(sums, offsets);
  T moments[2 * n] = {};
  double totals[2 * n];
  for (int i = 0; i < n; ++i) result[i].s.mean = static_cast<T>(static_cast<double>(origins[i]) + offsets[i] / count);
  each([&](int i, T value) {
    const T d = value - result[i].s.mean;
    moments[2 * i] += d;
    moments[2 * i + 1] = std::fma(d, d, moments[2 * i + 1]);
  });
  ColumnThreads::sum(moments, totals);
  bool untrusted = false;
  for (int i = 0; i < n; ++i) {
    const double near = static_cast<double>(result[i].s.mean), residual = totals[2 * i] / count;
    double squares = totals[2 * i + 1] - residual * totals[2 * i];
    if (squares < 0) squares = 0;  // rounding; a NaN stays
    result[i].var = static_cast<T>(squares / count);
    result[i].s.mean = static_cast<T>(near + residual);
    result[i].s.shift = static_cast<T>(near - static_cast<double>(result[i].s.mean) + residual);
    const double var = static_cast<double>(result[i].var);
    result[i].s.rstd = static_cast<T>(1 / std::sqrt(var + eps));
    if (!(var <= Bounds<T>::most) || var + eps < Bounds<T>::trustworthy) untrusted = true;
  }
  if (__syncthreads_or(untrusted) == 0) return;
  ColumnMoments<T> anew[n];
#pragma unroll 1
  for (int i = 0; i < n; ++i) anew[i] = scaled_moments<T>(eps, count, i, each);
  for (int i = 0; i < n; ++i) {
    const double var = static_cast<double>(result[i].var);
    if (!(var <= Bounds<T>::most) || var + eps < Bounds<T>::trustworthy) result[i] = anew[i];
  }
}

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

template <class T, Cell cell>
__global__ void __launch_bounds__(ColumnThreads::block)
    forward_by_columns(ForwardStep<T> step, StepColumns<T> x, StepColumns<T> h, StepColumns<T> c) {
  constexpr int gates = gate_count<cell>;
  const StepSpec& spec = step.spec;
  const int64_t hidden = spec.hidden, width = spec.width, j = int64_t{blockIdx.x} * ColumnThreads::columns + ColumnThreads::column();
  const bool inside = j < hidden;
  StepColumns<T> to[2 * gates];
  int64_t at[2 * gates];
  Affine<T> in[2 * gates];  // of the gates' a_x, then a_h
#pragma unroll
  for (int gate = 0; gate < gates; ++gate) {
    to[gate] = x, to[gates + gate] = h;
    at[gate] = at[gates + gate] = gate * hidden;
  }
  normalise<T>(
      spec, step.rows, j, inside, to, at,
      [&](int i, int64_t row) {
        const T value = (i < gates ? step.a_x : step.a_h)[row * width + (i < gates ? i : i - gates) * hidden + j];
        return value;
      },
      in);
  if (inside)
    for (int gate = 0; gate < gates; ++gate) {
      in[gate].gain = step.parts.gain_ih[gate * hidden + j], in[gate].bias = step.parts.bias[gate * hidden + j];
      in[gates + gate].gain = step.parts.gain_hh[gate * hidden + j];
      if (cell == Cell::gru && step.parts.bias_h != nullptr) in[gates + gate].bias = step.parts.bias_h[gate * hidden + j];
    }
  ColumnThreads::each(step.rows, inside, [&](int64_t row) {
    T outside[gates], within[gates];
#pragma unroll
    for (int gate = 0; gate < gates; ++gate) {
      const int64_t from = row * width + gate * hidden + j;
      outside[gate] = in[gate](step.a_x[from]), within[gate] = in[gates + gate](step.a_h[from]);
    }
    const auto put_gate = [&](int gate, T value) { step.gates[row * width + gate * hidden + j] = value; };
    const int64_t to_row = row * hidden + j;
    if constexpr (cell == Cell::lstm) {
      const T i = sigmoid(outside[0] + within[0]), f = sigmoid(outside[1] + within[1]), g = std::tanh(outside[2] + within[2]);
      put_gate(0, i), put_gate(1, f), put_gate(2, g), put_gate(3, sigmoid(outside[3] + within[3]));
      const T before = step.c[to_row], value = std::fma(f, before, i * g);
      step.c[to_row] = value;
      if (step.raw_c != nullptr) step.raw_c[to_row] = value;
    } else {
      T value = std::tanh(outside[0] + within[0]);
      if constexpr (cell == Cell::gru) {
        const T reset = sigmoid(outside[0] + within[0]), z = sigmoid(outside[1] + within[1]), n = std::tanh(std::fma(reset, within[2], outside[2]));
        put_gate(0, reset), put_gate(1, z), put_gate(2, n);
        if (step.n_term != nullptr) step.n_term[to_row] = within[2];
        const T before = step.h[to_row];
        value = std::fma(z, before, (T(1) - z) * n);
      }
      step.h[to_row] = value;
      step.y[to_row] = value;
    }
  });
  if constexpr (cell == Cell::lstm) {
    __syncthreads();  // row 0 of c is there for all slices
    const StepColumns<T> to_c[1] = {c};
    const int64_t at_c[1] = {0};
    Affine<T> k[1];
    normalise<T>(
        spec, step.rows, j, inside, to_c, at_c,
        [&](int, int64_t row) {
          const T value = step.c[row * hidden + j];
          return value;
        },
        k);
    if (inside) k[0].gain = step.parts.gain_c[j], k[0].bias = step.parts.bias_c[j];
    ColumnThreads::each(step.rows, inside, [&](int64_t row) {
      const T o = step.gates[row * width + 3 * hidden + j], value = o * std::tanh(k[0](step.c[row * hidden + j]));
      step.h[row * hidden + j] = value;
      step.y[row * hidden + j] = value;
    });
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

template <class T, Cell cell>
__global__ void __launch_bounds__(ColumnThreads::block)
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
    const int64_t at = row * hidden + j, first = row * width + j;
    T p[gates], p_inside = 0;
    if constexpr (cell == Cell::lstm) {
      const T i = step.gates[first], f = step.gates[first + hidden], g = step.gates[first + 2 * hidden], before = step.c_before[at], dk = step.dh[at];
      const T old = step.dc[at], dc = old + through_c.gradient(k, dk, step.raw_c[at]);
      p[0] = dc * g * sigmoid_slope(i), p[1] = dc * before * sigmoid_slope(f), p[2] = dc * i * tanh_slope(g);
      p[3] = step.da_x[first + 3 * hidden];
      step.dc[at] = dc * f;
    } else if constexpr (gru) {
      const T reset = step.gates[first], z = step.gates[first + hidden], n = step.gates[first + 2 * hidden], dy = step.dy[at], more = step.dh[at];
      const T dh = dy + more, before = step.h_before[at], n_term = step.n_term[at];
      p[2] = dh * (T(1) - z) * tanh_slope(n);
      p[0] = p[2] * n_term * sigmoid_slope(reset), p[1] = dh * (before - n) * sigmoid_slope(z);
      p_inside = p[2] * reset;
      step.da_h[first + 2 * hidden] = p_inside;
      step.dh[at] = dh * z;
    } else {
      const T y = step.y[at], dy = step.dy[at], more = step.dh[at];
      p[0] = (dy + more) * tanh_slope(y);
    }
#pragma unroll
    for (int gate = 0; gate < gates; ++gate) {
      const T p_h = gru && gate == last ? p_inside : p[gate];
      step.da_x[first + gate * hidden] = p[gate];
      parts[3 * gate] += p[gate];
      parts[3 * gate + 1] = std::fma(p[gate], in_x[gate].x_hat(step.a_x[first + gate * hidden]), parts[3 * gate + 1]);
      parts[3 * gate + 2] = std::fma(p_h, in_h[gate].x_hat(step.a_h[first + gate * hidden]), parts[3 * gate + 2]);
    }
    parts[3 * gates] += p_inside;
  });
  double totals[3 * gates + 1];
  ColumnThreads::sum(parts, totals);
  ThroughColumn<T> through_x[gates], through_h[gates];
#pragma unroll
  for (int gate = 0; gate < gates; ++gate) {
    const bool inner = gru && gate == last;
    through_x[gate].finish(spec, count, totals[3 * gate], totals[3 * gate + 1]);
    through_h[gate].finish(spec, count, totals[inner ? 3 * gates : 3 * gate], totals[3 * gate + 2]);
    if (!adds) continue;
    add(to, to.bias + gate * hidden + j, totals[3 * gate]);
    add(to, to.gain_ih + gate * hidden + j, totals[3 * gate + 1]), add(to, to.gain_hh + gate * hidden + j, totals[3 * gate + 2]);
    if (inner) add(to, to.n_bias + j, totals[3 * gates]);
  }
  ColumnThreads::each(step.rows, inside, [&](int64_t row) {
#pragma unroll
    for (int gate = 0; gate < gates; ++gate) {
      const int64_t at = row * width + gate * hidden + j;
      const T p = step.da_x[at];
      T p_h = p;
      if (gru && gate == last) p_h = step.da_h[at];
      step.da_x[at] = through_x[gate].gradient(in_x[gate], p, step.a_x[at]);
      step.da_h[at] = through_h[gate].gradient(in_h[gate], p_h, step.a_h[at]);
    }
  });
}

}  // namespace

template <class T>
void forward_columns(const Op& op, Cell cell, const ForwardStep<T>& step, const StepColumns<T>& x, const StepColumns<T>& h, const StepColumns<T>& c) {
  auto* const kernel = cell == Cell::lstm  ? forward_by_columns<T, Cell::lstm>
                       : cell == Cell::gru ? forward_by_columns<T, Cell::gru>
                                           : forward_by_columns<T, Cell::rnn>;
  launch(op.at("forward_by_columns"), kernel, blocks_for(step.spec.hidden, ColumnThreads::columns, INT32_MAX), ColumnThreads::block, 0, stream(),
         step, x, h, c);
}

template <class T>
void backward_columns(const Op& op, Cell cell, const BackwardStep<T>& step, const StepColumns<const T>& x, const StepColumns<const T>& h,
                      const StepColumns<const T>& c, const StepSums<T>& sums) {
  auto* const kernel = cell == Cell::lstm  ? backward_by_columns<T, Cell::lstm>
                       : cell == Cell::gru ? backward_by_columns<T, Cell::gru>
                                           : backward_by_columns<T, Cell::rnn>;
  launch(op.at("backward_by_columns"), kernel, blocks_for(step.spec.hidden, ColumnThreads::columns, INT32_MAX), ColumnThreads::block, 0, stream(),
         step, x, h, c, sums);
}

#define LAMINA_INSTANTIATE(T)                                                                                                                 \
  template void forward_columns(const Op&, Cell, const ForwardStep<T>&, const StepColumns<T>&, const StepColumns<T>&, const StepColumns<T>&); \
  template void backward_columns(const Op&, Cell, const BackwardStep<T>&, const StepColumns<const T>&, const StepColumns<const T>&,           \
                                 const StepColumns<const T>&, const StepSums<T>&);
LAMINA_INSTANTIATE(float)
LAMINA_INSTANTIATE(double)
#undef LAMINA_INSTANTIATE

}  // namespace lamina::kernels::cuda
