// One loss from many. Up to a few thousand items one block adds them up; more go to several, whose sums another launch adds, always in the same
// order.

#include "kernels/cuda/backend.h"
#include "kernels/cuda/device/chunk.cuh"
#include "kernels/cuda/device/fault.cuh"
#include "kernels/cuda/device/group.cuh"

namespace lamina::kernels {

namespace cuda {

namespace {

constexpr int threads = 256;
constexpr int64_t few_items = 16384, most_blocks = 256;

template <class T>
struct Result {
  bool mean;
  dptr<T> y;
  dptr<double> divisor;

  __device__ void store(double sum, double counted) const {
    const double by = mean && counted > 1 ? counted : 1;
    divisor[0] = by;
    y[0] = static_cast<T>(sum / by);
  }
};

/// A single block gives the result; several leave parts[2 block] = sum, parts[2 block + 1] = number of labels that count.
template <class T>
__global__ void __launch_bounds__(threads)
    add_losses(Result<T> result, int64_t n, dptr<const T> losses, dptr<const int64_t> labels, int64_t ignore, dptr<double> parts) {
  double sums[2] = {};
  for (int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x; i < n; i += int64_t{gridDim.x} * threads) {
    sums[0] += static_cast<double>(T(losses[i]));
    sums[1] += labels != nullptr && int64_t(labels[i]) == ignore ? 0 : 1;
  }
  BlockGroup<threads>::sum(sums);
  if (threadIdx.x != 0) return;
  if (gridDim.x == 1) return result.store(sums[0], sums[1]);
  parts[2 * int64_t{blockIdx.x}] = sums[0];
  parts[2 * int64_t{blockIdx.x} + 1] = sums[1];
}

template <class T>
__global__ void __launch_bounds__(threads) add_parts(Result<T> result, int64_t count, dptr<const double> parts) {
  double sums[2] = {};
  for (int64_t i = threadIdx.x; i < count; i += threads) {
    sums[0] += parts[2 * i];
    sums[1] += parts[2 * i + 1];
  }
  BlockGroup<threads>::sum(sums);
  if (threadIdx.x == 0) result.store(sums[0], sums[1]);
}

template <class T>
__global__ void __launch_bounds__(flat_threads) spread(Flat flat, dptr<const T> dy, dptr<const double> divisor, dptr<T> dlosses) {
  const T value = static_cast<T>(static_cast<double>(T(dy[0])) / double(divisor[0]));
  flat.each<Pack<T>::size>([&](auto width, int64_t at) {
    constexpr int vec = decltype(width)::value;
    Chunk<T, vec> values;
    for (int k = 0; k < vec; ++k) values.at[k] = value;
    store_chunk<T, vec>(dlosses + at, values);
  });
}

struct Labels {
  int64_t rows, classes;
  dptr<const int64_t> labels;
  int64_t ignore;
  FaultReport fault;

  /// f(row, position of its label) for the rows of this thread; the position is -1 where there is none.
  template <class F>
  __device__ void each(F f) const {
    for (int64_t row = int64_t{blockIdx.x} * threads + threadIdx.x; row < rows; row += int64_t{gridDim.x} * threads) {
      const int64_t label = labels[row];
      f(row, label != ignore && fault.in_range(row, label, classes) ? row * classes + label : -1);
    }
  }
};

template <class T>
__global__ void __launch_bounds__(threads) pick(Labels of, dptr<const T> log_probs, dptr<T> losses) {
  of.each([&](int64_t row, int64_t at) { losses[row] = at < 0 ? T(0) : -T(log_probs[at]); });
}
template <class T>
__global__ void __launch_bounds__(threads) put(Labels of, dptr<const T> dlosses, dptr<T> dlog_probs) {
  of.each([&](int64_t row, int64_t at) {
    if (at >= 0) dlog_probs[at] = -T(dlosses[row]);
  });
}

template <class T>
struct CudaLoss final : LossKernels<T> {
  void reduce(bool mean, int64_t n, const T* losses, const int64_t* labels, int64_t ignore, T* y, double* divisor) const override {
    const Op op("loss", {{"items", n}});
    const unsigned blocks = n <= few_items ? 1 : blocks_for(n, few_items / 4, most_blocks);
    const Scratch<double> parts(op, blocks > 1 ? 2 * int64_t{blocks} : 0);
    const Result<T> result{mean, y, divisor};
    launch(op.at("add_losses"), add_losses<T>, blocks, threads, 0, stream(), result, n, losses, labels, ignore, parts.data());
    if (blocks > 1) launch(op.at("add_parts"), add_parts<T>, 1, threads, 0, stream(), result, int64_t{blocks}, parts.data());
  }

  void reduce_backward(int64_t n, const T* dy, const double* divisor, T* dlosses) const override {
    const Flat flat = Flat::of<Pack<T>::size>(n, dlosses);
    launch(Op("loss_backward", {{"items", n}}), spread<T>, flat.blocks<Pack<T>::size>(), flat_threads, 0, stream(), flat, dy, divisor, dlosses);
  }

  void nll(int64_t rows, int64_t classes, const T* log_probs, const int64_t* labels, int64_t ignore, T* losses) const override {
    launch(Op("nll_loss", {{"rows", rows}, {"classes", classes}}), pick<T>, row_blocks(rows), threads, 0, stream(),
           Labels{rows, classes, labels, ignore, fault_report("nll_loss", "labels")}, log_probs, losses);
  }

  void nll_backward(int64_t rows, int64_t classes, const T* dlosses, const int64_t* labels, int64_t ignore, T* dlog_probs) const override {
    const Op op("nll_loss_backward", {{"rows", rows}, {"classes", classes}});
    if (rows == 0 || classes == 0) return;
    check(op, cudaMemsetAsync(dlog_probs, 0, static_cast<size_t>(rows * classes) * sizeof(T), stream()), "cudaMemsetAsync");
    launch(op, put<T>, row_blocks(rows), threads, 0, stream(), Labels{rows, classes, labels, ignore, fault_report("nll_loss", "labels")}, dlosses,
           dlog_probs);
  }

 private:
  static unsigned row_blocks(int64_t rows) { return blocks_for(rows, threads, most_flat_blocks); }
};

}  // namespace

}  // namespace cuda

template <>
const LossKernels<float>& CudaBackend::loss<float>() {
  static const cuda::CudaLoss<float> kernels;
  return kernels;
}
template <>
const LossKernels<double>& CudaBackend::loss<double>() {
  static const cuda::CudaLoss<double> kernels;
  return kernels;
}

}  // namespace lamina::kernels
