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
#include "kernels/random.h"
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
  static const MoveKernels& move();
};

[[noreturn]] inline void fail_no_cuda() { fail("device", "built without CUDA; configure with --preset cuda"); }

inline void require_cpu(Device device) {
  if (!device.is_cpu()) fail_no_cuda();
}

// T = float or double.
template <class T>
const GemmKernels<T>& gemm(Device device) {
  return require_cpu(device), CpuBackend::gemm<T>();
}
template <class T>
const ReduceKernels<T>& reduce(Device device) {
  return require_cpu(device), CpuBackend::reduce<T>();
}
template <class T>
const NormKernels<T>& norm(Device device) {
  return require_cpu(device), CpuBackend::norm<T>();
}
template <class T>
const SoftmaxKernels<T>& softmax(Device device) {
  return require_cpu(device), CpuBackend::softmax<T>();
}
template <class T>
const RandomKernels<T>& random(Device device) {
  return require_cpu(device), CpuBackend::random<T>();
}
template <class T>
const OptimizerKernels<T>& optimizer(Device device) {
  return require_cpu(device), CpuBackend::optimizer<T>();
}
// T = float, double, int64_t or uint8_t (the integers: only what elementwise.h and index.h say).
template <class T>
const ElementwiseKernels<T>& elementwise(Device device) {
  return require_cpu(device), CpuBackend::elementwise<T>();
}
template <class T>
const IndexKernels<T>& index(Device device) {
  return require_cpu(device), CpuBackend::index<T>();
}
inline const MoveKernels& move(Device device) { return require_cpu(device), CpuBackend::move(); }

}  // namespace lamina::kernels
