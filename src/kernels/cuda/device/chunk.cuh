#pragma once
// Consecutive elements, loaded and stored together, and the loop of kernels that take elements of flat arrays one for one.

#include <type_traits>

#include "kernels/cuda/launch.h"

namespace lamina::kernels::cuda {

/// n elements, at a multiple of their size, or of 16 bytes if that is less.
template <class T, int n>
struct alignas(n * sizeof(T) > 16 ? 16 : n * sizeof(T)) Chunk {
  T at[n];
};

#if defined(__CUDACC__)

template <class T, int n>
__device__ inline Chunk<T, n> load_chunk(const T* p) {
  return *reinterpret_cast<const Chunk<T, n>*>(p);
}
template <class T, int n>
__device__ inline void store_chunk(T* p, const Chunk<T, n>& values) {
  *reinterpret_cast<Chunk<T, n>*>(p) = values;
}

#elif defined(CUDA_EMULATOR)

template <class T, int n>
Chunk<T, n> load_chunk(std::type_identity_t<dptr<const T> > p) {
  p.check("read of a chunk", sizeof(Chunk<T, n>), alignof(Chunk<T, n>));
  Chunk<T, n> values;
  for (int i = 0; i < n; ++i) values.at[i] = p[i];
  return values;
}
template <class T, int n>
void store_chunk(std::type_identity_t<dptr<T> > p, const Chunk<T, n>& values) {
  p.check("write of a chunk", sizeof(Chunk<T, n>), alignof(Chunk<T, n>));
  for (int i = 0; i < n; ++i) p[i] = values.at[i];
}

#endif

/// Whether p is aligned for chunks of n.
template <int n, class T>
bool chunks_fit(const T* p) {
  return reinterpret_cast<uintptr_t>(p) % alignof(Chunk<T, n>) == 0;
}

constexpr int flat_threads = 256;
constexpr int64_t most_flat_blocks = 2048;  // two rounds of a large GPU; threads go round

/// n elements in chunks of vec, if all arrays are aligned for that, and the rest one by one.
struct Flat {
  int64_t n, chunks;

  template <int vec, class... T>
  static Flat of(int64_t n, const T*... arrays) {
    return {n, (chunks_fit<vec>(arrays) && ...) ? n / vec : 0};
  }
  template <int vec>
  unsigned blocks() const {
    return blocks_for(n, int64_t{flat_threads} * vec, most_flat_blocks);
  }

#if defined(__CUDACC__) || defined(CUDA_EMULATOR)
  /// f(integral_constant<int, elements>, first element) for what this thread takes.
  template <int vec, class F>
  __device__ void each(F f) const {
    const int64_t thread = int64_t{blockIdx.x} * flat_threads + threadIdx.x, threads = int64_t{gridDim.x} * flat_threads;
    for (int64_t chunk = thread; chunk < chunks; chunk += threads) f(std::integral_constant<int, vec>(), chunk * vec);
    for (int64_t i = chunks * vec + thread; i < n; i += threads) f(std::integral_constant<int, 1>(), i);
  }
#endif
};

}  // namespace lamina::kernels::cuda
