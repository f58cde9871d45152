// A step of a recurrent layer, backward, where nothing or each row is normalised, in one kernel, a row for a block; and the sums for biases and
// gains, which are taken once for many steps, column by column, so that the steps need not wait for them.

#include "kernels/cuda/recurrent.h"

namespace lamina::kernels::cuda {

namespace {

/// The gradients of a row's summed inputs: of each gate outside GRU's r, and of n inside it.
template <class T, Cell cell, bool kHeld>
class Pre {
 public:
  static constexpr int vec = Pack<T>::size, gates = Segments<cell, TermNorm::none>::gates;

  __device__ Pre(const BackwardStep<T>& step, const RowColumns<T, kHeld>& columns, int64_t row)
      : columns_(columns), memory_(step.pre_x + row * step.spec.width), keep_(step.keep_pre) {
    if constexpr (cell == Cell::gru) n_memory_ = step.pre_n + row * step.pre_n_width;
  }
  __device__ void put(int gate, int64_t j, const T (&values)[vec]) {
    if constexpr (kHeld)
      for (int k = 0; k < vec; ++k) held_[gate][k] = values[k];
    if (!kHeld || keep_) columns_.put(memory_ + gate * columns_.hidden, j, values);
  }
  __device__ void put_n(int64_t j, const T (&values)[vec]) {
    if constexpr (kHeld)
      for (int k = 0; k < vec; ++k) n_held_[k] = values[k];
    if (!kHeld || keep_) columns_.put(n_memory_, j, values);
  }
  __device__ void x(int gate, int64_t j, T (&values)[vec]) const {
    if constexpr (kHeld)
      for (int k = 0; k < vec; ++k) values[k] = held_[gate][k];
    else
      columns_.get(memory_ + gate * columns_.hidden, j, values);
  }
  __device__ void h(int gate, int64_t j, T (&values)[vec]) const {
    if (cell != Cell::gru || gate != 2) return x(gate, j, values);
    if constexpr (kHeld)
      for (int k = 0; k < vec; ++k) values[k] = n_held_[k];
    else
      columns_.get(n_memory_, j, values);
  }

 private:
  const RowColumns<T, kHeld>& columns_;
  dptr<T> memory_, n_memory_ = nullptr;
  bool keep_;
  T held_[kHeld ? gates : 1][vec] = {}, n_held_[vec] = {};
};

/// What the gradient through a normaliser of n values needs of the sums of a and a x-hat, a being the gradient of x-hat.
template <class T>
struct Means {
  __device__ void finish(bool centre, double n, double sum_a, double sum_a_hat) {
    a = static_cast<T>(centre ? sum_a / n : 0);
    a_hat = static_cast<T>(sum_a_hat / n);
  }
  __device__ T gradient(T a_at, T x_hat, T rstd) const { return rstd * std::fma(-x_hat, a_hat, a_at - a); }
  T a = 0, a_hat = 0;
};

/// sum += the sum of a, and product += that of a x-hat, over the first `count` elements.
template <class T, int vec>
__device__ void add_products(int count, const T (&a)[vec], const T (&x_hat)[vec], T& sum, T& product) {
  for (int k = 0; k < vec; ++k) {
    if (k >= count) continue;
    sum += a[k];
    product = std::fma(a[k], x_hat[k], product);
  }
}

// From the gradients of the summed inputs to those of a_x and a_h, where nothing is normalised.
template <class T, Cell cell, bool kHeld>
__device__ void plain_terms_backward(const BackwardStep<T>& step, const RowColumns<T, kHeld>& columns, int64_t row, const Pre<T, cell, kHeld>& pre) {
  using S = Segments<cell, TermNorm::none>;
  const int64_t hidden = columns.hidden, at = row * step.spec.width;
  columns.each([&](int64_t j) {
#pragma unroll
    for (int gate = 0; gate < S::gates; ++gate) {
      T values[Pack<T>::size];
      pre.x(gate, j, values);
      columns.put(step.da_x + (at + gate * hidden), j, values);
      if constexpr (S::two) {
        pre.h(gate, j, values);
        columns.put(step.da_h + (at + gate * hidden), j, values);
      }
    }
  });
}

// The same through the normalisers of a row's runs.
template <class T, Cell cell, TermNorm norm, bool kHeld>
__device__ void normalised_terms_backward(const BackwardStep<T>& step, const RowColumns<T, kHeld>& columns, int64_t row,
                                          const Pre<T, cell, kHeld>& pre) {
  using S = Segments<cell, norm>;
  constexpr int vec = Pack<T>::size;
  const int64_t hidden = columns.hidden, at = row * step.spec.width;
  const dptr<const T> gains_x = norm == TermNorm::gates ? step.parts.gain_hh : step.parts.gain_ih, gains_h = step.parts.gain_hh;
  const SummedInputs<T, cell, norm, kHeld> terms(columns, step.a_x + at, S::two ? dptr<const T>(step.a_h + at) : dptr<const T>(nullptr));
  Normaliser<T> x_hat[S::runs];
  for (int run = 0; run < S::runs; ++run) x_hat[run] = Normaliser<T>::at(step.statistics + row * step.spec.statistics + 3 * run);
  // f(run, gate, j, a, x-hat) for every run of a_x, then a_h.
  const auto each = [&](auto f) {
    columns.each([&](int64_t j) {
#pragma unroll
      for (int gate = 0; gate < S::gates; ++gate) {
        const auto part = [&](int run, dptr<const T> gains, const T(&gradient)[vec], const T(&values)[vec]) {
          T gain[vec], a[vec], normal[vec];
          columns.get(gains + gate * hidden, j, gain);
          for (int k = 0; k < vec; ++k) a[k] = gradient[k] * gain[k], normal[k] = x_hat[run](values[k]);
          f(run, gate, j, a, normal);
        };
        T gradient_x[vec], values[vec];
        [[maybe_unused]] T gradient_h[vec];
        pre.x(gate, j, gradient_x), terms.x(gate, j, values);
        if constexpr (S::two) pre.h(gate, j, gradient_h);  // before da_x may take its place
        part(S::of(gate), gains_x, gradient_x, values);
        if constexpr (S::two) {
          terms.h(gate, j, values);
          part(S::count + S::of(gate), gains_h, gradient_h, values);
        }
      }
    });
  };
  T parts[2 * S::runs] = {};
  double totals[2 * S::runs];
  each([&](int run, int, int64_t j, const T(&a)[vec], const T(&normal)[vec]) {
    add_products(columns.count(j), a, normal, parts[2 * run], parts[2 * run + 1]);
  });
  RowThreads::sum(parts, totals);
  Means<T> means[S::runs];
#pragma unroll
  for (int run = 0; run < S::runs; ++run)
    means[run].finish(step.spec.centre, static_cast<double>(S::size(run % S::count) * hidden), totals[2 * run], totals[2 * run + 1]);
  each([&](int run, int gate, int64_t j, const T(&a)[vec], const T(&normal)[vec]) {
    T gradient[vec];
    for (int k = 0; k < vec; ++k) gradient[k] = means[run].gradient(a[k], normal[k], x_hat[run].rstd);
    columns.put((run < S::count ? step.da_x : step.da_h) + (at + gate * hidden), j, gradient);
  });
}

template <class T, Cell cell, TermNorm norm, bool kHeld>
__device__ void terms_backward(const BackwardStep<T>& step, const RowColumns<T, kHeld>& columns, int64_t row, const Pre<T, cell, kHeld>& pre) {
  if constexpr (Segments<cell, norm>::normalised)
    normalised_terms_backward<T, cell, norm>(step, columns, row, pre);
  else
    plain_terms_backward(step, columns, row, pre);
}

template <class T, TermNorm norm, bool kHeld>
__device__ void lstm_row(const BackwardStep<T>& step, const RowColumns<T, kHeld>& columns, int64_t row) {
  constexpr int vec = Pack<T>::size;
  const StepSpec& spec = step.spec;
  const int64_t hidden = columns.hidden, at = row * hidden;
  const dptr<const T> gates = step.gates + row * 4 * hidden, c_row = step.raw_c + at;
  const dptr<T> dh_row = step.dh + at, dc_row = step.dc + at;
  Pre<T, Cell::lstm, kHeld> pre(step, columns, row);
  Normaliser<T> c_hat;
  if (spec.normalise_c) c_hat = Normaliser<T>::at(step.statistics + (row + 1) * spec.statistics - 3);

  T dk_held[vec] = {}, parts[2] = {};
  columns.each([&](int64_t j) {
    T o[vec], c[vec], dh[vec], more[vec], gain[vec], bias[vec], normal[vec];
    columns.get(gates + 3 * hidden, j, o), columns.get(c_row, j, c), columns.get(step.dy + at, j, dh), columns.get(dh_row, j, more);
    for (int k = 0; k < vec; ++k) dh[k] += more[k], normal[k] = gain[k] = T(0);
    if (spec.normalise_c) {
      columns.get(step.parts.gain_c, j, gain), columns.get(step.parts.bias_c, j, bias);
      for (int k = 0; k < vec; ++k) normal[k] = c_hat(c[k]), c[k] = std::fma(normal[k], gain[k], bias[k]);
    }
    T dk[vec];
    for (int k = 0; k < vec; ++k) {
      const T t = std::tanh(c[k]);
      dk[k] = dh[k] * o[k] * tanh_slope(t);
      o[k] = dh[k] * t * sigmoid_slope(o[k]);
    }
    pre.put(3, j, o);
    if (spec.normalise_c && spec.carry) {
      columns.get(dc_row, j, more);
      for (int k = 0; k < vec; ++k) dk[k] += more[k];
    }
    T a[vec];
    for (int k = 0; k < vec; ++k) a[k] = dk[k] * gain[k];
    add_products(columns.count(j), a, normal, parts[0], parts[1]);
    if (step.dk != nullptr) columns.put(step.dk + at, j, dk);
    if constexpr (kHeld)
      for (int k = 0; k < vec; ++k) dk_held[k] = dk[k];
    else
      columns.put(dh_row, j, dk);
  });
  Means<T> means;
  if (spec.normalise_c) {
    double totals[2];
    RowThreads::sum(parts, totals);
    means.finish(spec.centre, static_cast<double>(hidden), totals[0], totals[1]);
  }

  const bool before_normalised = step.statistics_before != nullptr;
  Normaliser<T> before_hat;
  if (before_normalised) before_hat = Normaliser<T>::at(step.statistics_before + row * spec.statistics);
  columns.each([&](int64_t j) {
    T i[vec], f[vec], g[vec], before[vec], dc[vec], gradient[vec];
    if constexpr (kHeld)
      for (int k = 0; k < vec; ++k) gradient[k] = dk_held[k];
    else
      columns.get(dh_row, j, gradient);
    columns.get(gates, j, i), columns.get(gates + hidden, j, f), columns.get(gates + 2 * hidden, j, g);
    columns.get(step.c_before + at, j, before), columns.get(dc_row, j, dc);
    if (spec.normalise_c) {
      T c[vec], gain[vec], bias[vec];
      columns.get(c_row, j, c), columns.get(step.parts.gain_c, j, gain), columns.get(step.parts.bias_c, j, bias);
      for (int k = 0; k < vec; ++k) {
        gradient[k] = means.gradient(gradient[k] * gain[k], c_hat(c[k]), c_hat.rstd);
        if (before_normalised) before[k] = std::fma(before_hat(before[k]), gain[k], bias[k]);
      }
    }
    T d_i[vec], d_f[vec], d_g[vec];
    for (int k = 0; k < vec; ++k) {
      const T total = spec.normalise_c && spec.carry ? gradient[k] : gradient[k] + dc[k];
      d_i[k] = total * g[k] * sigmoid_slope(i[k]);
      d_f[k] = total * before[k] * sigmoid_slope(f[k]);
      d_g[k] = total * i[k] * tanh_slope(g[k]);
      dc[k] = total * f[k];
    }
    pre.put(0, j, d_i), pre.put(1, j, d_f), pre.put(2, j, d_g);
    columns.put(dc_row, j, dc);
  });
  terms_backward<T, Cell::lstm, norm, kHeld>(step, columns, row, pre);
}

template <class T, TermNorm norm, bool kHeld>
__device__ void gru_row(const BackwardStep<T>& step, const RowColumns<T, kHeld>& columns, int64_t row) {
  constexpr int vec = Pack<T>::size;
  const int64_t hidden = columns.hidden, at = row * hidden;
  const dptr<const T> gates = step.gates + row * 3 * hidden;
  Pre<T, Cell::gru, kHeld> pre(step, columns, row);
  columns.each([&](int64_t j) {
    T reset[vec], z[vec], n[vec], before[vec], inside[vec], dh[vec], more[vec];
    columns.get(gates, j, reset), columns.get(gates + hidden, j, z), columns.get(gates + 2 * hidden, j, n);
    columns.get(step.h_before + at, j, before), columns.get(step.dy + at, j, dh), columns.get(step.dh + at, j, more);
    if constexpr (norm == TermNorm::terms) {
      const Normaliser<T> x_hat = Normaliser<T>::at(step.statistics + row * step.spec.statistics + 9);  // of a_h's second run
      T gain[vec], bias[vec];
      columns.get(step.a_h + row * 3 * hidden + 2 * hidden, j, inside);
      columns.get(step.parts.gain_hh + 2 * hidden, j, gain), columns.get(step.parts.bias_h + 2 * hidden, j, bias);
      for (int k = 0; k < vec; ++k) inside[k] = std::fma(x_hat(inside[k]), gain[k], bias[k]);
    } else {
      columns.get(step.n_term + at, j, inside);
    }
    T d_r[vec], d_z[vec], d_n[vec], d_inside[vec];
    for (int k = 0; k < vec; ++k) {
      dh[k] += more[k];
      d_n[k] = dh[k] * (T(1) - z[k]) * tanh_slope(n[k]);
      d_r[k] = d_n[k] * inside[k] * sigmoid_slope(reset[k]);
      d_z[k] = dh[k] * (before[k] - n[k]) * sigmoid_slope(z[k]);
      d_inside[k] = d_n[k] * reset[k];
      dh[k] *= z[k];
    }
    pre.put(0, j, d_r), pre.put(1, j, d_z), pre.put(2, j, d_n), pre.put_n(j, d_inside);
    columns.put(step.dh + at, j, dh);
  });
  terms_backward<T, Cell::gru, norm, kHeld>(step, columns, row, pre);
}

template <class T, TermNorm norm, bool kHeld>
__device__ void rnn_row(const BackwardStep<T>& step, const RowColumns<T, kHeld>& columns, int64_t row) {
  constexpr int vec = Pack<T>::size;
  const int64_t at = row * columns.hidden;
  Pre<T, Cell::rnn, kHeld> pre(step, columns, row);
  columns.each([&](int64_t j) {
    T y[vec], dh[vec], more[vec];
    columns.get(step.y + at, j, y), columns.get(step.dy + at, j, dh), columns.get(step.dh + at, j, more);
    for (int k = 0; k < vec; ++k) dh[k] = (dh[k] + more[k]) * tanh_slope(y[k]);
    pre.put(0, j, dh);
  });
  terms_backward<T, Cell::rnn, norm, kHeld>(step, columns, row, pre);
}

template <class T, Cell cell, TermNorm norm, bool kHeld>
__global__ void __launch_bounds__(RowThreads::most) backward_step(BackwardStep<T> step) {
  const RowColumns<T, kHeld> columns(step.spec.hidden, step.spec.packs);
  for (int64_t row = blockIdx.x; row < step.rows; row += gridDim.x) {
    if constexpr (cell == Cell::lstm) lstm_row<T, norm, kHeld>(step, columns, row);
    if constexpr (cell == Cell::gru) gru_row<T, norm, kHeld>(step, columns, row);
    if constexpr (cell == Cell::rnn) rnn_row<T, norm, kHeld>(step, columns, row);
  }
}

constexpr int tile = 32, slices = 16;

// A column's sums of p and p x-hat over all rows, in a fixed order: by a tile's slices, in runs of at most 32 in T, then in double.
template <class T>
struct ColumnTerm {
  __device__ void add(int64_t row, int statistics_width, T& sum, T& product) const {
    const T p = gradient[row * gradient_width];
    sum += p;
    if (values != nullptr) product = std::fma(p, Normaliser<T>::at(statistics + row * statistics_width)(values[row * values_width]), product);
  }
  dptr<const T> gradient = nullptr, values = nullptr, statistics = nullptr;  // of row 0
  int64_t gradient_width = 0, values_width = 0;
};

// What the columns of the summed inputs, and after them those of c, add up: one term outside GRU's r, or of c, and perhaps one of a_h.
template <class T>
__device__ void terms_of_column(const SumTerms<T>& t, int64_t column, ColumnTerm<T>& first, ColumnTerm<T>& second) {
  const int64_t hidden = t.spec.hidden, width = t.spec.width;
  if (column >= width) {
    first = {t.dk + (column - width), t.raw_c + (column - width), t.statistics + (t.spec.statistics - 3), hidden, hidden};
    return;
  }
  const int64_t gate = column / hidden;
  const bool inside = t.gru && gate == 2;
  const int64_t segment = t.by_gate ? gate : inside ? 1 : 0;
  first = {t.pre_x + column, nullptr, nullptr, width, width};
  if (inside)
    second = {t.pre_n + (column - 2 * hidden), nullptr, nullptr, t.pre_n_width, width};
  else if (t.terms)
    second = first;
  if (t.terms || t.by_gate) first.values = t.a_x + column, first.statistics = t.statistics + 3 * segment;
  if (t.terms) second.values = t.a_h + column, second.statistics = t.statistics + 3 * ((t.gru ? 2 : 1) + segment);
}

template <class T>
__global__ void __launch_bounds__(tile* slices) sum_columns(SumTerms<T> t, StepSums<T> to) {
  constexpr int kinds = 4, chain = 32;
  __shared__ shared_array<double, kinds * slices * tile> sums;
  const int64_t hidden = t.spec.hidden, width = t.spec.width, columns = width + (t.dk != nullptr ? hidden : 0);
  const int64_t column = int64_t{blockIdx.x} * tile + threadIdx.x;
  double totals[kinds] = {};
  if (column < columns) {
    ColumnTerm<T> first, second;
    terms_of_column(t, column, first, second);
    for (int64_t begin = threadIdx.y; begin < t.rows; begin += slices * chain) {
      T parts[kinds] = {};
      const int64_t end = begin + slices * chain < t.rows ? begin + slices * chain : t.rows;
      for (int64_t row = begin; row < end; row += slices) {
        first.add(row, t.spec.statistics, parts[0], parts[1]);
        if (second.gradient != nullptr) second.add(row, t.spec.statistics, parts[2], parts[3]);
      }
      for (int kind = 0; kind < kinds; ++kind) totals[kind] += static_cast<double>(parts[kind]);
    }
  }
  for (int kind = 0; kind < kinds; ++kind)
    sums[(kind * slices + static_cast<int>(threadIdx.y)) * tile + static_cast<int>(threadIdx.x)] = totals[kind];
  __syncthreads();
  const int kind = static_cast<int>(threadIdx.y);
  if (kind >= kinds || column >= columns) return;
  const bool of_c = column >= width, inside = !of_c && t.gru && column >= 2 * hidden;
  int64_t at = -1;
  if (kind == 0) at = of_c ? to.bias_c + (column - width) : to.bias + column;
  if (kind == 1 && of_c) at = to.gain_c + (column - width);
  if (kind == 1 && !of_c && (t.terms || t.by_gate)) at = (t.terms ? to.gain_ih : to.gain_hh) + column;
  if (kind == 2 && inside) at = to.n_bias + (column - 2 * hidden);
  if (kind == 3 && !of_c && t.terms) at = to.gain_hh + column;
  if (at < 0) return;
  double total = static_cast<double>(T(to.sums[at]));
  for (int slice = 0; slice < slices; ++slice) total += sums[(kind * slices + slice) * tile + static_cast<int>(threadIdx.x)];
  to.sums[at] = static_cast<T>(total);
}

}  // namespace

template <class T>
void backward_rows(const Op& op, const RecurrentSpec& spec, const BackwardStep<T>& step) {
  with_rows(spec, [&]<Cell cell, TermNorm norm>() {
    launch_rows<T>(op.at("backward_step"), Segments<cell, norm>::normalised || spec.normalise_c, backward_step<T, cell, norm, true>,
                   backward_step<T, cell, norm, false>, step);
  });
}

template <class T>
void column_sums(const Op& op, const SumTerms<T>& terms, const StepSums<T>& sums) {
  const int64_t columns = terms.spec.width + (terms.dk != nullptr ? terms.spec.hidden : 0);
  launch(op.at("sum_columns"), sum_columns<T>, blocks_for(columns, tile, INT32_MAX), dim3(tile, slices), 0, stream(), terms, sums);
}

template void backward_rows(const Op&, const RecurrentSpec&, const BackwardStep<float>&);
template void backward_rows(const Op&, const RecurrentSpec&, const BackwardStep<double>&);
template void column_sums(const Op&, const SumTerms<float>&, const StepSums<float>&);
template void column_sums(const Op&, const SumTerms<double>&, const StepSums<double>&);

}  // namespace lamina::kernels::cuda
