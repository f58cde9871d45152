#pragma once
// What exists of the CUDA backend. It is not part of kernels/kernels.h's choice by device yet: that needs every family (docs/cuda.md says which are
// there).

#include "kernels/optimizer.h"

namespace lamina::kernels {

struct CudaBackend {
  template <class T>
  static const OptimizerKernels<T>& optimizer();
};

template <>
const OptimizerKernels<float>& CudaBackend::optimizer<float>();
template <>
const OptimizerKernels<double>& CudaBackend::optimizer<double>();

}  // namespace lamina::kernels
