// What is left of a product when cuBLAS has nothing to multiply, and what it starts from when there is a bias.

#include <cmath>

#include "kernels/cuda/device/row.cuh"
#include "kernels/cuda/device/sheet.cuh"
#include "kernels/cuda/gemm.h"

namespace lamina::kernels::cuda {

namespace {

template <class T, int kVec>
__global__ void __launch_bounds__(sheet_threads)
    scaled_with_bias(int64_t count, int64_t m, int64_t n, T beta, dptr<T> c, int64_t ldc, int64_t stride_c, dptr<const T> bias) {
  const int64_t column = sheet_pack() * kVec;
  if (column >= n) return;
  T b[kVec] = {};
  if (bias != nullptr) load(bias + column, b);
  for (int64_t row = sheet_row(); row < count * m; row += sheet_rows_at_once()) {
    const dptr<T> at = c + (row / m * stride_c + row % m * ldc + column);
    T values[kVec] = {};
    if (beta != T(0)) load(at, values);
    for (int k = 0; k < kVec; ++k) values[k] = beta != T(0) ? std::fma(beta, values[k], b[k]) : b[k];
    store<T, kVec>(at, values);
  }
}

}  // namespace

template <class T>
void scale_and_bias(const Op& op, int64_t count, int64_t m, int64_t n, T beta, T* c, int64_t ldc, int64_t stride_c, const T* bias) {
  if (count == 0 || m == 0 || n == 0 || (beta == T(1) && !bias)) return;
  const auto run = [&](auto* kernel, int vec) {
    const Sheet sheet(count * m, n / vec);
    launch(op.at("scaled_with_bias"), kernel, sheet.grid, sheet.block, 0, stream(), count, m, n, beta, c, ldc, stride_c, bias);
  };
  const bool packs = packs_fit(c, n) && packs_fit(c, ldc) && packs_fit(c, stride_c) && packs_fit(bias);
  packs ? run(scaled_with_bias<T, Pack<T>::size>, Pack<T>::size) : run(scaled_with_bias<T, 1>, 1);
}

template void scale_and_bias(const Op&, int64_t, int64_t, int64_t, float, float*, int64_t, int64_t, const float*);
template void scale_and_bias(const Op&, int64_t, int64_t, int64_t, double, double*, int64_t, int64_t, const double*);

}  // namespace lamina::kernels::cuda
