// Running statistics of a recurrent layer's batch norm. Rows are moved side by side; where several steps move the last row, they do so in turn.

#include <algorithm>

#include "kernels/cuda/recurrent.h"

namespace lamina::kernels::cuda {

namespace {

constexpr int threads = 256;

/// Steps [first, last) of `width` columns, all of as many sequences, and the rows that they move: step s moves min(s, rows - 1).
template <class T>
struct StepRun {
  int64_t width, rows, first, last;
  double momentum, unbiased;
  dptr<const T> batch_mean, batch_var;
  dptr<T> mean, var;
};

// A block says of a step, in turn, whether all of its statistics are finite.
template <class T>
__global__ void __launch_bounds__(threads) find_finite(StepRun<T> run, dptr<uint8_t> finite) {
  for (int64_t step = run.first + blockIdx.x; step < run.last; step += gridDim.x) {
    bool bad = false;
    for (int64_t i = threadIdx.x; i < run.width; i += threads) {
      const double mean = static_cast<double>(T(run.batch_mean[step * run.width + i]));
      const double var = static_cast<double>(T(run.batch_var[step * run.width + i])) * run.unbiased;
      if (!(std::fabs(mean) < Bounds<T>::infinity) || !(std::fabs(var) < Bounds<T>::infinity)) bad = true;
    }
    const int any = __syncthreads_or(bad);
    if (threadIdx.x == 0) finite[step - run.first] = any == 0;
  }
}

template <class T>
__global__ void __launch_bounds__(threads) move_rows(StepRun<T> run, dptr<const uint8_t> finite) {
  const int64_t column = int64_t{blockIdx.x} * threads + threadIdx.x, last_row = run.rows - 1;
  if (column >= run.width) return;
  const int64_t first = run.first < last_row ? run.first : last_row, past = run.last < run.rows ? run.last : run.rows;
  for (int64_t row = first + blockIdx.y; row < past; row += gridDim.y) {
    const int64_t at = row * run.width + column;
    double mean = static_cast<double>(T(run.mean[at])), var = static_cast<double>(T(run.var[at]));
    const int64_t begin = row < run.first ? run.first : row, end = row < last_row ? row + 1 : run.last;
    for (int64_t step = begin; step < end; ++step) {
      if (finite[step - run.first] == 0) continue;
      const double batch_mean = static_cast<double>(T(run.batch_mean[step * run.width + column]));
      const double batch_var = static_cast<double>(T(run.batch_var[step * run.width + column])) * run.unbiased;
      mean = static_cast<double>(static_cast<T>((1 - run.momentum) * mean + run.momentum * batch_mean));
      var = static_cast<double>(static_cast<T>((1 - run.momentum) * var + run.momentum * batch_var));
    }
    run.mean[at] = static_cast<T>(mean);
    run.var[at] = static_cast<T>(var);
  }
}

}  // namespace

template <class T>
void move_running(const RunningColumns<T>& w) {
  const Op op("recurrent", {{"steps", w.steps.last - w.steps.first}, {"width", w.width}, {"rows", w.rows}});
  if (w.width == 0 || w.rows == 0) return;
  int64_t last = 0;
  for (int64_t first = w.steps.first; first < w.steps.last; first = last) {
    last = first + 1;
    while (last < w.steps.last && w.steps.alive[last] == w.steps.alive[first]) ++last;
    const double alive = static_cast<double>(w.steps.alive[first]);
    const StepRun<T> run{w.width, w.rows, first, last, w.momentum, alive / (alive - 1), w.batch_mean, w.batch_var, w.mean, w.var};
    const Scratch<uint8_t> finite(op, last - first);
    launch(op.at("find_finite"), find_finite<T>, blocks_for(last - first, 1, 65535), threads, 0, stream(), run, finite.data());
    const int64_t rows = std::min(last, w.rows) - std::min(first, w.rows - 1);
    const dim3 grid(blocks_for(w.width, threads, INT32_MAX), blocks_for(rows, 1, 65535));
    launch(op.at("move_rows"), move_rows<T>, grid, threads, 0, stream(), run, finite.data());
  }
}
template void move_running(const RunningColumns<float>&);
template void move_running(const RunningColumns<double>&);

}  // namespace lamina::kernels::cuda
