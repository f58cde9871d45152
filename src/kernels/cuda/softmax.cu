// Softmax, log-softmax and cross-entropy. Along the last axis a warp or a block holds a row on chip (device/row.cuh), so that it is read once and
// written once. Along another axis, and where rows are long and few, softmax_columns.cu is called.

#include "kernels/cuda/backend.h"
#include "kernels/cuda/device/row.cuh"
#include "kernels/cuda/device/softmax.cuh"

namespace lamina::kernels {

namespace cuda {

namespace {

template <class T>
__device__ dptr<T> cache_of(bool cached, int64_t width, int64_t number = 0) {
  return cached ? dptr<T>(shared<T>(width, number * width * static_cast<int64_t>(sizeof(T)))) : dptr<T>(nullptr);
}

/// The largest entry. NaNs are passed over: the sum of exponentials that follows makes the row NaN in any case.
template <class T, class Row>
__device__ T largest_of(const Row& row, int64_t width) {
  T top = -Bounds<T>::infinite;
  Row::each(width, [&](int item, int64_t column) {
    T values[Row::vec];
    row.get(item, column, values);
    for (int k = 0; k < Row::vec; ++k)
      if (values[k] > top) top = values[k];
  });
  return static_cast<T>(Row::Group::largest(static_cast<double>(top)));
}

/// exp(x - from) of a pack. A row in registers keeps it in place of x, once keep_exp has been called for the pack.
template <class T, class Row>
__device__ void keep_exp(Row& row, int item, int64_t column, T from, T (&values)[Row::vec]) {
  row.get(item, column, values);
  for (int k = 0; k < Row::vec; ++k) values[k] = std::exp(values[k] - from);
  if constexpr (Row::held) row.put(item, values);
}
template <class T, class Row>
__device__ void kept_exp(const Row& row, int item, int64_t column, T from, T (&values)[Row::vec]) {
  row.get(item, column, values);
  if constexpr (!Row::held)
    for (int k = 0; k < Row::vec; ++k) values[k] = std::exp(values[k] - from);
}

template <class T, class Row>
__global__ void __launch_bounds__(Row::Group::block_threads)
    softmax_rows(bool log, bool cached, int64_t rows, int64_t width, dptr<const T> x, dptr<T> y) {
  constexpr int vec = Row::vec;
  Row held;
  for (int64_t row = first_row<Row>(); row < rows; row += rows_at_once<Row>()) {
    held.fill(width, x + row * width, cache_of<T>(cached, width));
    const T top = largest_of<T>(held, width);
    double sum[1];
    add_items<Row, T>(width, sum, [&](int item, int64_t column, T(&terms)[1]) {
      T e[vec];
      if (log) {
        held.get(item, column, e);
        for (int k = 0; k < vec; ++k) terms[0] += std::exp(e[k] - top);
      } else {
        keep_exp(held, item, column, top, e);
        for (int k = 0; k < vec; ++k) terms[0] += e[k];
      }
    });
    const T factor = static_cast<T>(log ? std::log(sum[0]) : 1 / sum[0]);
    Row::each(width, [&](int item, int64_t column) {
      T values[vec];
      if (log) {
        held.get(item, column, values);
        for (int k = 0; k < vec; ++k) values[k] = (values[k] - top) - factor;
      } else {
        kept_exp(held, item, column, top, values);
        for (int k = 0; k < vec; ++k) values[k] *= factor;
      }
      store<T, vec>(y + row * width + column, values);
    });
  }
}

template <class T, class Row>
__global__ void __launch_bounds__(Row::Group::block_threads)
    softmax_rows_backward(bool log, bool cached, int64_t rows, int64_t width, dptr<const T> y, dptr<const T> dy, dptr<T> dx) {
  constexpr int vec = Row::vec;
  Row y_held, dy_held;
  for (int64_t row = first_row<Row>(); row < rows; row += rows_at_once<Row>()) {
    y_held.fill(width, y + row * width, cache_of<T>(cached, width));
    dy_held.fill(width, dy + row * width, cache_of<T>(cached, width, 1));
    double sum[1];
    add_items<Row, T>(width, sum, [&](int item, int64_t column, T(&terms)[1]) {
      T ys[vec], dys[vec];
      y_held.get(item, column, ys);
      dy_held.get(item, column, dys);
      for (int k = 0; k < vec; ++k) terms[0] += gradient_term(log, ys[k], dys[k]);
    });
    const T total = static_cast<T>(sum[0]);
    Row::each(width, [&](int item, int64_t column) {
      T ys[vec], dys[vec];
      y_held.get(item, column, ys);
      dy_held.get(item, column, dys);
      for (int k = 0; k < vec; ++k) ys[k] = gradient(log, ys[k], dys[k], total);
      store<T, vec>(dx + row * width + column, ys);
    });
  }
}

template <class T, class Row>
__global__ void __launch_bounds__(Row::Group::block_threads)
    cross_entropy_rows(Targets targets, bool cached, dptr<const T> logits, dptr<T> loss, dptr<T> lse) {
  constexpr int vec = Row::vec;
  const int64_t classes = targets.classes;
  Row held;
  for (int64_t row = first_row<Row>(); row < targets.rows; row += rows_at_once<Row>()) {
    const dptr<const T> x = logits + row * classes;
    held.fill(classes, x, cache_of<T>(cached, classes));
    const T top = largest_of<T>(held, classes);
    double sums[2];  // of the exponentials; of the logits, about the largest
    add_items<Row, T>(classes, sums, [&](int item, int64_t column, T(&terms)[2]) {
      T values[vec];
      held.get(item, column, values);
      for (int k = 0; k < vec; ++k) {
        terms[0] += std::exp(values[k] - top);
        terms[1] += values[k] - top;
      }
    });
    if (Row::Group::rank() != 0) continue;
    targets.store_loss<T>(row, x, top, std::log(sums[0]), sums[1], loss, lse);
  }
}

template <class T, class Row>
__global__ void __launch_bounds__(Row::Group::block_threads)
    cross_entropy_rows_backward(Targets targets, bool cached, dptr<const T> logits, dptr<const T> lse, dptr<const T> dloss, dptr<T> dlogits) {
  constexpr int vec = Row::vec;
  const int64_t classes = targets.classes;
  Row held;
  for (int64_t row = first_row<Row>(); row < targets.rows; row += rows_at_once<Row>()) {
    const int64_t label = targets.labels[row];
    const dptr<T> dx = dlogits + row * classes;
    const bool ignored = label == targets.ignore;
    if (ignored || label < 0 || label >= classes) {
      if (!ignored && Row::Group::rank() == 0) targets.report.in_range(row, label, classes);
      const T zeros[vec] = {};
      Row::each(classes, [&](int, int64_t column) { store<T, vec>(dx + column, zeros); });
      continue;
    }
    held.fill(classes, logits + row * classes, cache_of<T>(cached, classes));
    const T from = lse[row];
    double sum[1];
    add_items<Row, T>(classes, sum, [&](int item, int64_t column, T(&terms)[1]) {
      T e[vec];
      keep_exp(held, item, column, from, e);
      for (int k = 0; k < vec; ++k) terms[0] += e[k];
    });
    const LogitGradient<T> of(targets, static_cast<double>(dloss[row]), sum[0]);
    Row::each(classes, [&](int item, int64_t column) {
      T values[vec];
      kept_exp(held, item, column, from, values);
      for (int k = 0; k < vec; ++k) values[k] = of(values[k], column + k == label);
      store<T, vec>(dx + column, values);
    });
  }
}

template <class T>
struct CudaSoftmax final : SoftmaxKernels<T> {
  void softmax(bool log, int64_t outer, int64_t axis, int64_t inner, const T* x, T* y) const override {
    const Op op(log ? "log_softmax" : "softmax", {{"outer", outer}, {"axis", axis}, {"inner", inner}});
    if (outer == 0 || axis == 0 || inner == 0) return;
    if (inner > 1 || few_long_rows<T>(outer, axis)) return softmax_columns(op, log, ColumnTiles(outer, axis, inner), x, y);
    with_row<T>(axis, packs_fit(x, axis) && packs_fit(y), [&](auto type) {
      using Row = typename decltype(type)::type;
      run_rows<Row>(op, softmax_rows<T, Row>, outer, axis, 1, [&](auto&& go, bool cached) { go(log, cached, outer, axis, x, y); });
    });
  }

  void softmax_backward(bool log, int64_t outer, int64_t axis, int64_t inner, const T* y, const T* dy, T* dx) const override {
    const Op op(log ? "log_softmax_backward" : "softmax_backward", {{"outer", outer}, {"axis", axis}, {"inner", inner}});
    if (outer == 0 || axis == 0 || inner == 0) return;
    if (inner > 1 || few_long_rows<T>(outer, axis)) return softmax_columns_backward(op, log, ColumnTiles(outer, axis, inner), y, dy, dx);
    with_row<T>(axis, packs_fit(y, axis) && packs_fit(dy) && packs_fit(dx), [&](auto type) {
      using Row = typename decltype(type)::type;
      run_rows<Row>(op, softmax_rows_backward<T, Row>, outer, axis, 2, [&](auto&& go, bool cached) { go(log, cached, outer, axis, y, dy, dx); });
    });
  }

  void cross_entropy(int64_t rows, int64_t classes, const T* logits, const int64_t* labels, int64_t ignore, double smoothing, T* loss,
                     T* lse) const override {
    const Op op("cross_entropy", {{"rows", rows}, {"classes", classes}});
    if (rows == 0) return;
    const Targets targets{rows, classes, labels, ignore, smoothing, fault_report("cross_entropy", "labels")};
    if (few_long_rows<T>(rows, classes)) return cross_entropy_columns(op, targets, logits, loss, lse);
    with_row<T>(classes, packs_fit(logits, classes), [&](auto type) {
      using Row = typename decltype(type)::type;
      run_rows<Row>(op, cross_entropy_rows<T, Row>, rows, classes, 1, [&](auto&& go, bool cached) { go(targets, cached, logits, loss, lse); });
    });
  }

  void cross_entropy_backward(int64_t rows, int64_t classes, const T* logits, const T* lse, const int64_t* labels, int64_t ignore, double smoothing,
                              const T* dloss, T* dlogits) const override {
    const Op op("cross_entropy_backward", {{"rows", rows}, {"classes", classes}});
    if (rows == 0 || classes == 0) return;
    const Targets targets{rows, classes, labels, ignore, smoothing, fault_report("cross_entropy", "labels")};
    if (few_long_rows<T>(rows, classes)) return cross_entropy_columns_backward(op, targets, logits, lse, dloss, dlogits);
    with_row<T>(classes, packs_fit(logits, classes) && packs_fit(dlogits), [&](auto type) {
      using Row = typename decltype(type)::type;
      run_rows<Row>(op, cross_entropy_rows_backward<T, Row>, rows, classes, 1,
                    [&](auto&& go, bool cached) { go(targets, cached, logits, lse, dloss, dlogits); });
    });
  }

 private:
  /// Launches a kernel for `rows` rows, of which a group holds `held` arrays at a time; arguments(go, cached) calls go with the kernel's.
  template <class Row, class Kernel, class Arguments>
  static void run_rows(const Op& op, Kernel* kernel, int64_t rows, int64_t width, int held, Arguments arguments) {
    const size_t bytes = Row::held ? 0 : cache_bytes<T>(op, held, width);
    allow_shared(op, kernel, bytes);
    arguments(
        [&](auto... values) {
          launch(op, kernel, blocks_for(rows, Row::Group::per_block, most_row_blocks), Row::Group::block_threads, bytes, stream(), values...);
        },
        bytes > 0);
  }
};

}  // namespace

}  // namespace cuda

template <>
const SoftmaxKernels<float>& CudaBackend::softmax<float>() {
  static const cuda::CudaSoftmax<float> kernels;
  return kernels;
}
template <>
const SoftmaxKernels<double>& CudaBackend::softmax<double>() {
  static const cuda::CudaSoftmax<double> kernels;
  return kernels;
}

}  // namespace lamina::kernels
