// Philox streams, bit for bit the CPU's: a thread makes one block of four numbers, which are one, two or four elements (kernels/random.h).

#include <Random123/philox.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <type_traits>

#include <lamina/core/error.h>

#include "kernels/cuda/backend.h"
#include "kernels/cuda/device/arithmetic.cuh"
#include "kernels/cuda/device/chunk.cuh"

namespace lamina::kernels {

namespace cuda {

namespace {

struct Numbers {
  uint32_t at[4];
};

/// One stream, and what of it a launch fills.
struct Stream {
  uint64_t key, counter;
  int64_t n;
  bool packed;                             // the arrays are aligned for chunks
  dptr<const int64_t> position = nullptr;  // in a step that a graph runs again: counts from here. Else null

  __device__ uint64_t start() const { return position != nullptr ? counter + static_cast<uint64_t>(int64_t(position[0])) : counter; }
  __device__ Numbers block(uint64_t start, int64_t number) const {
    const uint64_t at = start + static_cast<uint64_t>(number);
    r123::Philox4x32::ctr_type from = {{static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32), 0, 0}};
    r123::Philox4x32::key_type with = {{static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)}};
    const r123::Philox4x32::ctr_type out = r123::Philox4x32()(from, with);
    return {{out.v[0], out.v[1], out.v[2], out.v[3]}};
  }
};

/// Uniform in [0, 1) from the 53 high bits of a pair (first number low).
__device__ double uniform53(uint32_t low, uint32_t high) { return static_cast<double>(((static_cast<uint64_t>(high) << 32) | low) >> 11) * 0x1p-53; }

/// Numbers to elements. `each` of them come from one block.
template <class T>
struct UniformKind {
  static constexpr int each = sizeof(T) == 4 ? 4 : 2;
  __device__ T operator()(const Numbers& numbers, int i, T) const {
    T u;
    if constexpr (each == 4)
      u = static_cast<T>(numbers.at[i] >> 8) * T(0x1p-24);
    else
      u = uniform53(numbers.at[2 * i], numbers.at[2 * i + 1]);
    const T v = add_product(start, u, width);  // can round up to `last` itself, which is excluded
    return v < last || !(start < last) ? v : below_last;
  }
  T start, width, last, below_last;
};
template <class T>
struct NormalKind {
  static constexpr int each = 1;
  __device__ T operator()(const Numbers& numbers, int, T) const {
    constexpr double two_pi = 6.28318530717958647693;
    const double u = 1.0 - uniform53(numbers.at[0], numbers.at[1]);  // in (0, 1], for the logarithm
    const double angle = two_pi * uniform53(numbers.at[2], numbers.at[3]);
    return static_cast<T>(mean + std * ::sqrt(-2 * ::log(u)) * ::cos(angle));
  }
  double mean, std;
};
template <class T>
struct BernoulliKind {
  static constexpr int each = 4;
  __device__ T operator()(const Numbers& numbers, int i, T) const { return T(numbers.at[i] < threshold); }
  uint64_t threshold;
};
template <class T>
struct DropoutKind {
  static constexpr int each = 4;
  __device__ T operator()(const Numbers& numbers, int i, T x) const { return numbers.at[i] < threshold ? x * factor : T(0); }
  uint64_t threshold;
  T factor;
};

constexpr int threads = 256;
constexpr int64_t most_blocks = 4096;  // threads go round

/// y = kind(numbers, i, x), x null where the kind reads none. y may be x.
template <class Kind, class T>
__global__ void __launch_bounds__(threads) draw(Stream stream, Kind kind, dptr<const T> x, dptr<T> y) {
  constexpr int each = Kind::each;
  const uint64_t start = stream.start();
  const int64_t groups = (stream.n + each - 1) / each, step = int64_t{gridDim.x} * threads;
  for (int64_t group = int64_t{blockIdx.x} * threads + threadIdx.x; group < groups; group += step) {
    const Numbers numbers = stream.block(start, group);
    const int64_t first = group * each;
    if (stream.packed && first + each <= stream.n) {
      Chunk<T, each> values = {};
      if (x != nullptr) values = load_chunk<T, each>(x + first);
      for (int i = 0; i < each; ++i) values.at[i] = kind(numbers, i, values.at[i]);
      store_chunk<T, each>(y + first, values);
    } else {
#pragma unroll
      for (int i = 0; i < each; ++i)
        if (first + i < stream.n) y[first + i] = kind(numbers, i, x != nullptr ? T(x[first + i]) : T(0));
    }
  }
}

template <class Kind, class T>
void launch_draw(const char* name, uint64_t key, uint64_t counter, int64_t n, const Kind& kind, const T* x, T* y) {
  Stream numbers{key, counter, n, chunks_fit<Kind::each>(y) && (!x || chunks_fit<Kind::each>(x))};
  if (const RepeatedStep* step = RepeatedStep::current()) {
    const RepeatedStep::Stream* const from = step->find(key);
    if (!from) fail(name, "a captured step draws from a stream that is not among the model's buffers");
    numbers.counter -= from->start;
    numbers.position = from->position;
  }
  launch(Op(name, {{"n", n}}), draw<Kind, T>, blocks_for(n, int64_t{threads} * Kind::each, most_blocks), threads, 0, stream(), numbers, kind, x, y);
}

template <class T>
struct CudaRandom final : RandomKernels<T> {
  static constexpr bool floating = std::is_floating_point_v<T>;
  static constexpr T* nothing = nullptr;

  void uniform(uint64_t key, uint64_t counter, int64_t n, double low, double high, T* y) const override {
    if constexpr (floating) {
      const T last = static_cast<T>(high);
      const UniformKind<T> kind{static_cast<T>(low), static_cast<T>(high - low), last, std::nextafter(last, -std::numeric_limits<T>::infinity())};
      launch_draw("uniform", key, counter, n, kind, nothing, y);
    } else {
      std::abort();
    }
  }

  void normal(uint64_t key, uint64_t counter, int64_t n, double mean, double std, T* y) const override {
    if constexpr (floating)
      launch_draw("normal", key, counter, n, NormalKind<T>{mean, std}, nothing, y);
    else
      std::abort();
  }

  void bernoulli(uint64_t key, uint64_t counter, int64_t n, uint64_t threshold, T* y) const override {
    launch_draw("bernoulli", key, counter, n, BernoulliKind<T>{threshold}, nothing, y);
  }

  void dropout(uint64_t key, uint64_t counter, int64_t n, uint64_t threshold, double scale, const T* x, T* y) const override {
    if constexpr (floating)
      launch_draw("dropout", key, counter, n, DropoutKind<T>{threshold, static_cast<T>(scale)}, x, y);
    else
      std::abort();
  }
};

template <class T>
const RandomKernels<T>& instance() {
  static const CudaRandom<T> kernels;
  return kernels;
}

}  // namespace

}  // namespace cuda

template <>
const RandomKernels<float>& CudaBackend::random<float>() {
  return cuda::instance<float>();
}
template <>
const RandomKernels<double>& CudaBackend::random<double>() {
  return cuda::instance<double>();
}
template <>
const RandomKernels<uint8_t>& CudaBackend::random<uint8_t>() {
  return cuda::instance<uint8_t>();
}

}  // namespace lamina::kernels
