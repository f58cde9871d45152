#pragma once
// What the tests of row and channel normalisers share.

#include <hwy/highway.h>

#include "kernels/kernels.h"
#include "kernels/vectors.h"

namespace lamina::test {

using namespace lamina::kernels;

inline constexpr double f32_forward =
    1e-5;  // a two-pass f32 kernel meets the double reference on the same inputs to some units of 1.2e-7 times |x-hat|
inline constexpr double f32_backward = 2e-5;  // the same with one more reduction
inline constexpr double f64_forward = 1e-12;  // some tens of units in the last place
inline constexpr double difference_step = 1e-5,
                        difference_tolerance = 2e-8;  // central differences: step^2 and 1e-16 / step, times derivatives of order 10
inline constexpr double six_digits = 2e-6;            // values written with six or seven digits

inline size_t index(int64_t i) { return static_cast<size_t>(i); }

inline const NormKernels<float>& f32() { return CpuBackend::norm<float>(); }
inline const NormKernels<double>& f64() { return CpuBackend::norm<double>(); }
template <class T>
const NormKernels<T>& kernels_of() {
  return CpuBackend::norm<T>();
}

template <class T>
const T* pointer(const std::vector<T>& v) {
  return v.empty() ? nullptr : v.data();
}

/// The means that a row normaliser saved, with what rounding them took.
template <class T>
std::vector<double> means_of(const std::vector<T>& saved) {
  const size_t rows = saved.size() / 2;
  std::vector<double> means(rows);
  for (size_t i = 0; i < rows; ++i) means[i] = static_cast<double>(saved[i]) + static_cast<double>(saved[rows + i]);
  return means;
}

/// Calls f once for each instruction set that this machine and the build have.
template <class F>
void for_each_instruction_set(F&& f) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    INFO(hwy::TargetName(target));
    f();
  }
  hwy::SetSupportedTargetsForTest(0);
}

}  // namespace lamina::test
