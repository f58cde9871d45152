#pragma once
// The seam between ops and backends. A kernel family is one small abstract struct (templated on the element type where it does arithmetic);
// each backend implements it as a `final` struct and exports one accessor. Kernels see raw pointers, sizes and leading dimensions, never tensors
// or the graph; they overwrite their outputs, allocate nothing that lives on, and assume that their caller has checked everything.
// A kernel that a backend lacks is a compile error. Outputs must not overlap inputs unless a comment says that they may.

#include <lamina/core/device.h>
#include <lamina/core/error.h>

#include "kernels/elementwise.h"
#include "kernels/gemm.h"
#include "kernels/index.h"
#include "kernels/move.h"
#include "kernels/norm.h"
#include "kernels/optimizer.h"
#include "kernels/profile.h"
#include "kernels/random.h"
#include "kernels/recurrent.h"
#include "kernels/reduce.h"
#include "kernels/softmax.h"

namespace lamina::kernels {

// What a backend provides; kernels/cpu/*.cpp define these for CpuBackend.
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
  static const RandomKernels<T>& random();
  template <class T>
  static const OptimizerKernels<T>& optimizer();
  template <class T>
  static const RecurrentKernels<T>& recurrent();
  static const MoveKernels& move();
};

inline constexpr const char* no_cuda = "built without CUDA: that backend is not complete yet (docs/cuda.md)";
[[noreturn]] inline void fail_no_cuda() { fail("device", no_cuda); }

inline void require_cpu(Device device) {
  if (!device.is_cpu()) fail_no_cuda();
}

// How ops reach their backend: kernels::norm<T>(x.device())->row_forward(...).
// T = float or double.
template <class T>
Timed<GemmKernels<T>> gemm(Device device) {
  return require_cpu(device), Timed(CpuBackend::gemm<T>(), Family::gemm);
}
template <class T>
Timed<ReduceKernels<T>> reduce(Device device) {
  return require_cpu(device), Timed(CpuBackend::reduce<T>(), Family::reduce);
}
template <class T>
Timed<NormKernels<T>> norm(Device device) {
  return require_cpu(device), Timed(CpuBackend::norm<T>(), Family::norm);
}
template <class T>
Timed<SoftmaxKernels<T>> softmax(Device device) {
  return require_cpu(device), Timed(CpuBackend::softmax<T>(), Family::softmax);
}
template <class T>
Timed<RandomKernels<T>> random(Device device) {
  return require_cpu(device), Timed(CpuBackend::random<T>(), Family::random);
}
template <class T>
Timed<OptimizerKernels<T>> optimizer(Device device) {
  return require_cpu(device), Timed(CpuBackend::optimizer<T>(), Family::optimizer);
}
template <class T>
Timed<RecurrentKernels<T>> recurrent(Device device) {
  return require_cpu(device), Timed(CpuBackend::recurrent<T>(), Family::recurrent);
}
// T = float, double, int64_t or uint8_t (the integers: only what elementwise.h and index.h say).
template <class T>
Timed<ElementwiseKernels<T>> elementwise(Device device) {
  return require_cpu(device), Timed(CpuBackend::elementwise<T>(), Family::elementwise);
}
template <class T>
Timed<IndexKernels<T>> index(Device device) {
  return require_cpu(device), Timed(CpuBackend::index<T>(), Family::index);
}
inline Timed<MoveKernels> move(Device device) { return require_cpu(device), Timed(CpuBackend::move(), Family::move); }

}  // namespace lamina::kernels
