// Products of middling size (a batch of 128 with a layer's weight), where general BLAS shares out the work in its own way: the weight moves from core
// to core, and panels are packed for all. Here a thread packs a panel of B when it needs it and multiplies while the panel is in its cache, and a
// weight's rows (but for the panel at the cut) belong to the same thread in the forward product, in both gradients and in the update.

#include <algorithm>

#include <lamina/core/parallel.h>
#include "kernels/cpu/gemm_own.h"
#include "kernels/cpu/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gemm_blocked.cpp"
#include <hwy/foreach_target.h>

#include "kernels/cpu/gemm_parts.h"
#include "kernels/cpu/simd.h"

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels::HWY_NAMESPACE {

// Rows of B that are packed at a time: a panel of them is 128 KiB.
constexpr int64_t kDepth = 1024;
// Multiplications below which a range is not worth a thread.
constexpr int64_t kGrain = 1 << 18;

int64_t grain(int64_t work_of_one) { return std::max<int64_t>(1, kGrain / std::max<int64_t>(1, work_of_one)); }

/// B [k,n] is a weight that stands as it is (the gradient for the input): chunks of its rows are shared out, each giving a part of every sum. 1 where
/// the parts would cost more than they save.
template <class T>
int64_t depth_chunks(int64_t m, int64_t n, int64_t k) {
  constexpr int64_t kLeastRows = 128;
  return chunks_of<T>(m, n, [&](int64_t chunks) { return k >= chunks * kLeastRows && k >= chunks * m; });
}

/// Panels [begin, end) of C (+)= A[., top..bottom) B[top..bottom, .).
template <class T>
void some_panels(int64_t begin, int64_t end, int64_t top, int64_t bottom, int64_t m, int64_t n, const Matrix<T>& a, const Matrix<T>& b,
                 const Output<T>& out, T* buffer) {
  for (int64_t panel = begin; panel < end; ++panel) {
    for (int64_t p = top; p < bottom; p += kDepth) {
      const int64_t depth = std::min(kDepth, bottom - p);
      pack_panel(b, p, depth, panel * kPanel<T>, n, buffer);
      times_panel<T>(m, depth, a, p, buffer, panel * kPanel<T>, n, p == top ? out : Output<T>{T(1), out.c, out.ldc, nullptr});
    }
  }
}

template <class T>
void by_panels(int64_t m, int64_t n, int64_t k, const Matrix<T>& a, const Matrix<T>& b, const Output<T>& out) {
  const int64_t panels = (n + kPanel<T> - 1) / kPanel<T>, chunks = b.transposed ? 1 : depth_chunks<T>(m, n, k);
  const Scratch<T> sums(chunks > 1 ? chunks * m * n : 0);
  parallel_for(chunks * panels, grain(m * kPanel<T> * k / chunks), [&](int64_t begin, int64_t end) HWY_ATTR {
    const Scratch<T> buffer(kPanel<T> * std::min(k, kDepth));
    while (begin < end) {
      const int64_t chunk = begin / panels, stop = std::min(end, (chunk + 1) * panels);
      const Output<T> there = chunks > 1 ? Output<T>{T(0), sums.data() + chunk * m * n, n, nullptr} : out;
      some_panels<T>(begin - chunk * panels, stop - chunk * panels, k * chunk / chunks, k * (chunk + 1) / chunks, m, n, a, b, there, buffer.data());
      begin = stop;
    }
  });
  if (chunks > 1) add_chunks(chunks, m, n, sums.data(), out);
}

/// The rows [begin, end) of A's transpose (A stands as [k,m]) in tiles of kTileRows, each [depth, kTileRows]: the rows of A are pages apart.
template <class T>
void pack_tiles(int64_t begin, int64_t end, int64_t top, int64_t depth, const Matrix<T>& a, T* tiles) {
  for (int64_t i = begin; i < end; i += kTileRows, tiles += kTileRows * depth) {
    const int64_t rows = std::min<int64_t>(kTileRows, end - i);
    for (int64_t p = 0; p < depth; ++p) std::copy_n(a.data + (top + p) * a.ld + i, rows, tiles + p * kTileRows);
  }
}

/// A stands transposed, B as it is: C [m,n] is the gradient of a weight. Its rows are shared out, and everybody reads the packed B.
template <class T>
void by_rows(int64_t m, int64_t n, int64_t k, const Matrix<T>& a, const Matrix<T>& b, const Output<T>& out) {
  const int64_t panels = (n + kPanel<T> - 1) / kPanel<T>;
  const Scratch<T> packed(panels * kPanel<T> * std::min(k, kDepth));
  for (int64_t top = 0; top < k; top += kDepth) {
    const int64_t depth = std::min(kDepth, k - top);
    parallel_for(panels, grain(kPanel<T> * depth), [&](int64_t begin, int64_t end) HWY_ATTR {
      for (int64_t panel = begin; panel < end; ++panel) pack_panel(b, top, depth, panel * kPanel<T>, n, packed.data() + panel * kPanel<T> * depth);
    });
    parallel_for(m, grain(n * depth), [&](int64_t begin, int64_t end) HWY_ATTR {
      const Scratch<T> tiles((end - begin + kTileRows - 1) / kTileRows * kTileRows * depth);
      pack_tiles(begin, end, top, depth, a, tiles.data());
      for (int64_t panel = 0; panel < panels; ++panel) {
        for (int64_t i = begin; i < end; i += kTileRows) {
          const Matrix<T> rows{tiles.data() + (i - begin) * depth, kTileRows, true};
          const Output<T> there{top == 0 ? out.beta : T(1), out.c + i * out.ldc, out.ldc, top == 0 ? out.bias : nullptr};
          times_panel<T>(std::min<int64_t>(kTileRows, end - i), depth, rows, 0, packed.data() + panel * kPanel<T> * depth, panel * kPanel<T>, n,
                         there);
        }
      }
    });
  }
}

template <class T>
void blocked_gemm_on_target(int64_t m, int64_t n, int64_t k, const Matrix<T>& a, const Matrix<T>& b, T beta, T* c, int64_t ldc, const T* bias) {
  const Output<T> out{beta, c, ldc, bias};
  if (a.transposed && !b.transposed) return by_rows(m, n, k, a, b, out);
  by_panels(m, n, k, a, b, out);
}

void blocked_gemm_f32(int64_t m, int64_t n, int64_t k, const Matrix<float>& a, const Matrix<float>& b, float beta, float* c, int64_t ldc,
                      const float* bias) {
  blocked_gemm_on_target(m, n, k, a, b, beta, c, ldc, bias);
}
void blocked_gemm_f64(int64_t m, int64_t n, int64_t k, const Matrix<double>& a, const Matrix<double>& b, double beta, double* c, int64_t ldc,
                      const double* bias) {
  blocked_gemm_on_target(m, n, k, a, b, beta, c, ldc, bias);
}

}  // namespace lamina::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lamina::kernels {

HWY_EXPORT(blocked_gemm_f32);
HWY_EXPORT(blocked_gemm_f64);

namespace cpu {

template <>
void blocked_gemm(int64_t m, int64_t n, int64_t k, Matrix<float> a, Matrix<float> b, float beta, float* c, int64_t ldc, const float* bias) {
  if (m == 0 || n == 0) return;
  if (k == 0) return scale_and_bias(m, n, beta, c, ldc, bias);
  HWY_DYNAMIC_DISPATCH(blocked_gemm_f32)(m, n, k, a, b, beta, c, ldc, bias);
}
template <>
void blocked_gemm(int64_t m, int64_t n, int64_t k, Matrix<double> a, Matrix<double> b, double beta, double* c, int64_t ldc, const double* bias) {
  if (m == 0 || n == 0) return;
  if (k == 0) return scale_and_bias(m, n, beta, c, ldc, bias);
  HWY_DYNAMIC_DISPATCH(blocked_gemm_f64)(m, n, k, a, b, beta, c, ldc, bias);
}

}  // namespace cpu
}  // namespace lamina::kernels
#endif
