#pragma once
// The seam between ops and backends. A kernel family is one small abstract struct (templated on the element type where it does arithmetic);
// each backend implements it as a `final` struct and exports one accessor. Kernels see raw pointers, sizes and leading dimensions, never tensors
// or the graph; they overwrite their outputs, allocate nothing that lives on, and assume that their caller has checked everything.
// A kernel that a backend lacks is a compile error. Outputs must not overlap inputs unless a comment says that they may.

#include <lamina/core/device.h>

#include <string>
#include <utility>

#include "kernels/elementwise.h"
#include "kernels/gemm.h"
#include "kernels/index.h"
#include "kernels/loss.h"
#include "kernels/move.h"
#include "kernels/norm.h"
#include "kernels/optimizer.h"
#include "kernels/profile.h"
#include "kernels/random.h"
#include "kernels/recurrent.h"
#include "kernels/reduce.h"
#include "kernels/softmax.h"

namespace lamina::kernels {

// What a backend provides. kernels/cpu/*.cpp define these.
struct CpuBackend {
  template <class T>
  static const GemmKernels<T>& gemm();
  template <class T>
  static const ElementwiseKernels<T>& elementwise();
  template <class T>
  static const ReduceKernels<T>& reduce();
  template <class T>
  static const IndexKernels<T>& index();
  template <class T>
  static const NormKernels<T>& norm();
  template <class T>
  static const SoftmaxKernels<T>& softmax();
  template <class T>
  static const LossKernels<T>& loss();
  template <class T>
  static const RandomKernels<T>& random();
  template <class T>
  static const OptimizerKernels<T>& optimizer();
  template <class T>
  static const RecurrentKernels<T>& recurrent();
  static const MoveKernels& move();
};

/// kernels/cuda/* define these, or, in a build without CUDA, kernels/no_cuda.cpp. Kernels work on the current GPU, queue their work on its stream and
/// return.
struct CudaBackend {
  template <class T>
  static const GemmKernels<T>& gemm();
  template <class T>
  static const ElementwiseKernels<T>& elementwise();
  template <class T>
  static const ReduceKernels<T>& reduce();
  template <class T>
  static const IndexKernels<T>& index();
  template <class T>
  static const NormKernels<T>& norm();
  template <class T>
  static const SoftmaxKernels<T>& softmax();
  template <class T>
  static const LossKernels<T>& loss();
  template <class T>
  static const RandomKernels<T>& random();
  template <class T>
  static const OptimizerKernels<T>& optimizer();
  template <class T>
  static const RecurrentKernels<T>& recurrent();
  static const MoveKernels& move();
  static const StepKernels& step();

  static bool built();
  /// GPUs that can be used; 0 also where the driver is missing or too old, and then why_none() says so.
  static int count();
  static std::string why_none();
  static std::string name(int index);
  /// Makes a GPU the current one of this thread. Throws Error where there is no such GPU.
  static void use(int index);

  // On the current GPU.
  /// Null when there is not that much.
  static void* allocate(int64_t bytes);
  static void release(void* memory) noexcept;
  /// Bytes that the GPU has free, and all of it.
  static std::pair<int64_t, int64_t> memory();
  /// Waits until all work is done; throws what went wrong in it.
  static void synchronize();

  // Work of the current GPU as a graph. From begin_capture() on it is written down instead of done; the host must not wait or copy then.
  static void begin_capture();
  static void* end_capture();
  /// After an error in between.
  static void abandon_capture() noexcept;
  static void launch_graph(void* graph);
  static void drop_graph(void* graph) noexcept;

  /// Of the products of all GPUs: whether f32 may be rounded to TF32.
  static void allow_tf32(bool allow);
};

/// Whether a tensor there is CUDA's; makes its GPU the current one.
inline bool on_cuda(Device device) {
  if (device.is_cpu()) return false;
  CudaBackend::use(device.index);
  return true;
}

// How ops reach their backend: kernels::norm<T>(x.device())->row_forward(...).
// T = float or double.
template <class T>
Timed<GemmKernels<T>> gemm(Device device) {
  return Timed(on_cuda(device) ? CudaBackend::gemm<T>() : CpuBackend::gemm<T>(), Family::gemm, device);
}
template <class T>
Timed<ReduceKernels<T>> reduce(Device device) {
  return Timed(on_cuda(device) ? CudaBackend::reduce<T>() : CpuBackend::reduce<T>(), Family::reduce, device);
}
template <class T>
Timed<NormKernels<T>> norm(Device device) {
  return Timed(on_cuda(device) ? CudaBackend::norm<T>() : CpuBackend::norm<T>(), Family::norm, device);
}
template <class T>
Timed<SoftmaxKernels<T>> softmax(Device device) {
  return Timed(on_cuda(device) ? CudaBackend::softmax<T>() : CpuBackend::softmax<T>(), Family::softmax, device);
}
template <class T>
Timed<LossKernels<T>> loss(Device device) {
  return Timed(on_cuda(device) ? CudaBackend::loss<T>() : CpuBackend::loss<T>(), Family::loss, device);
}
template <class T>
Timed<RandomKernels<T>> random(Device device) {
  return Timed(on_cuda(device) ? CudaBackend::random<T>() : CpuBackend::random<T>(), Family::random, device);
}
template <class T>
Timed<OptimizerKernels<T>> optimizer(Device device) {
  return Timed(on_cuda(device) ? CudaBackend::optimizer<T>() : CpuBackend::optimizer<T>(), Family::optimizer, device);
}
template <class T>
Timed<RecurrentKernels<T>> recurrent(Device device) {
  return Timed(on_cuda(device) ? CudaBackend::recurrent<T>() : CpuBackend::recurrent<T>(), Family::recurrent, device);
}
// T = float, double, int64_t or uint8_t (the integers: only what elementwise.h and index.h say).
template <class T>
Timed<ElementwiseKernels<T>> elementwise(Device device) {
  return Timed(on_cuda(device) ? CudaBackend::elementwise<T>() : CpuBackend::elementwise<T>(), Family::elementwise, device);
}
template <class T>
Timed<IndexKernels<T>> index(Device device) {
  return Timed(on_cuda(device) ? CudaBackend::index<T>() : CpuBackend::index<T>(), Family::index, device);
}
inline Timed<MoveKernels> move(Device device) { return Timed(on_cuda(device) ? CudaBackend::move() : CpuBackend::move(), Family::move, device); }

}  // namespace lamina::kernels
