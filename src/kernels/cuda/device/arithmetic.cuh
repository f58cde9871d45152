#pragma once
// Arithmetic that must round as the CPU's does.

namespace lamina::kernels::cuda {

/// a + b c with the product rounded first: nvcc makes one fused operation of it elsewhere.
#if defined(__CUDACC__)
__device__ inline float add_product(float a, float b, float c) { return __fadd_rn(a, __fmul_rn(b, c)); }
__device__ inline double add_product(double a, double b, double c) { return __dadd_rn(a, __dmul_rn(b, c)); }
#else
template <class T>
T add_product(T a, T b, T c) {
  const T product = b * c;
  return a + product;
}
#endif

}  // namespace lamina::kernels::cuda
