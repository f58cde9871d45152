// Two or three operands with broadcasting, and integers. A thread takes chunks of 16 bytes along the last axis where every operand has them there or
// stands still, else single elements; several of either, all loaded before the first is stored.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <type_traits>

#include "kernels/cuda/backend.h"
#include "kernels/cuda/device/broadcast.cuh"
#include "kernels/cuda/device/chunk.cuh"
#include "kernels/cuda/elementwise.h"

namespace lamina::kernels {

namespace cuda {

namespace {

// Integer arithmetic wraps around, which only unsigned types do.
template <class T>
struct Wrapping {
  using Type = T;
};
template <>
struct Wrapping<int64_t> {
  using Type = uint64_t;
};
template <>
struct Wrapping<uint8_t> {
  using Type = unsigned;
};

template <Binary op>
struct BinaryOp {
  template <class T>
  __device__ T operator()(T a, T b) const {
    using W = typename Wrapping<T>::Type;
    if constexpr (op == Binary::add) {
      return static_cast<T>(static_cast<W>(a) + static_cast<W>(b));
    } else if constexpr (op == Binary::sub) {
      return static_cast<T>(static_cast<W>(a) - static_cast<W>(b));
    } else if constexpr (op == Binary::mul) {
      return static_cast<T>(static_cast<W>(a) * static_cast<W>(b));
    } else if constexpr (op == Binary::div) {
      return a / b;
    } else if constexpr (op == Binary::max) {
      return a > b || a != a ? a : b;  // either NaN
    } else if constexpr (op == Binary::min) {
      return a < b || a != a ? a : b;
    } else {
      static_assert(op == Binary::pow);
      return std::pow(a, b);
    }
  }
};

/// A comparison, as the set of outcomes for which it holds.
struct CompareOp {
  static constexpr unsigned less = 1, equal = 2, greater = 4, unordered = 8;

  explicit CompareOp(Compare op) {
    switch (op) {
      case Compare::eq: holds = equal; break;
      case Compare::ne: holds = less | greater | unordered; break;
      case Compare::lt: holds = less; break;
      case Compare::le: holds = less | equal; break;
      case Compare::gt: holds = greater; break;
      case Compare::ge: holds = greater | equal; break;
    }
  }
  template <class T>
  __device__ uint8_t operator()(T a, T b) const {
    const unsigned outcome = a < b ? less : a > b ? greater : a == b ? equal : unordered;
    return (holds & outcome) != 0;
  }

  unsigned holds = 0;
};

constexpr int threads = 256;
template <int vec>
constexpr int chunks_per_thread = vec == 1 ? 4 : 2;

/// An operand of a space: its memory, and whether it moves along the last axis. All chunks but the last of a line are whole.
template <class T>
struct Operand {
  template <int vec>
  __device__ void get(uint32_t at, int count, T (&values)[vec]) const {
    if (vec == 1 || step == 0) {
      const T value = data[at];
      for (int k = 0; k < vec; ++k) values[k] = value;
    } else if (count >= vec) {
      const Chunk<T, vec> chunk = load_chunk<T, vec>(data + at);
      for (int k = 0; k < vec; ++k) values[k] = chunk.at[k];
    } else {
      for (int k = 0; k < vec; ++k) values[k] = k < count ? T(data[at + k]) : T(0);
    }
  }

  dptr<const T> data;
  uint32_t step;
};

template <int vec, class T>
__device__ void put(dptr<T> at, int count, const T (&values)[vec]) {
  if (count >= vec) {
    Chunk<T, vec> chunk;
    for (int k = 0; k < vec; ++k) chunk.at[k] = values[k];
    store_chunk<T, vec>(at, chunk);
  } else {
    for (int k = 0; k < count; ++k) at[k] = values[k];
  }
}

/// f(item, chunk) for the chunks of this thread.
template <int vec, class F>
__device__ void each_chunk(uint32_t chunks, F f) {
  constexpr int items = chunks_per_thread<vec>;
#pragma unroll
  for (int item = 0; item < items; ++item) {
    const uint32_t chunk = (blockIdx.x * items + static_cast<uint32_t>(item)) * threads + threadIdx.x;
    if (chunk < chunks) f(item, chunk);
  }
}
template <int vec, int operands>
__device__ int count_of(const Space<operands>& space, uint32_t chunk) {
  const uint32_t left = space.size - chunk * vec;
  return left < vec ? static_cast<int>(left) : vec;
}

template <int vec, class F, class T, class Z>
__global__ void __launch_bounds__(threads) combine(Space<2> space, F f, Operand<T> a, Operand<T> b, dptr<Z> z) {
  T as[chunks_per_thread<vec>][vec], bs[chunks_per_thread<vec>][vec];
  each_chunk<vec>(space.chunks, [&](int item, uint32_t chunk) {
    uint32_t at[2];
    space.locate(chunk, at);
    a.get(at[0], count_of<vec>(space, chunk), as[item]);
    b.get(at[1], count_of<vec>(space, chunk), bs[item]);
  });
  each_chunk<vec>(space.chunks, [&](int item, uint32_t chunk) {
    Z zs[vec];
#pragma unroll
    for (int k = 0; k < vec; ++k) zs[k] = f(as[item][k], bs[item][k]);
    put(z + int64_t{chunk} * vec, count_of<vec>(space, chunk), zs);
  });
}

template <int vec, class T>
__global__ void __launch_bounds__(threads) choose(Space<3> space, Operand<uint8_t> mask, Operand<T> a, Operand<T> b, dptr<T> z) {
  T as[chunks_per_thread<vec>][vec], bs[chunks_per_thread<vec>][vec];
  uint8_t masks[chunks_per_thread<vec>][vec];
  each_chunk<vec>(space.chunks, [&](int item, uint32_t chunk) {
    uint32_t at[3];
    space.locate(chunk, at);
    mask.get(at[0], count_of<vec>(space, chunk), masks[item]);
    a.get(at[1], count_of<vec>(space, chunk), as[item]);
    b.get(at[2], count_of<vec>(space, chunk), bs[item]);
  });
  each_chunk<vec>(space.chunks, [&](int item, uint32_t chunk) {
    T zs[vec];
#pragma unroll
    for (int k = 0; k < vec; ++k) zs[k] = masks[item][k] ? as[item][k] : bs[item][k];
    put(z + int64_t{chunk} * vec, count_of<vec>(space, chunk), zs);
  });
}

// Each part of the space is a launch: one, but for 2^31 elements and more.

template <class T>
Operand<T> operand(const Broadcast& space, size_t k, const T* data) {
  return {data, space.rank == 0 ? 0 : static_cast<uint32_t>(space.strides[k][static_cast<size_t>(space.rank - 1)])};
}

/// f.operator()<vec>() with the widest chunks for which whole(vec) holds and that fill the last axis.
template <int widest, class F>
void with_chunks(const Broadcast& space, bool aligned, F&& f) {
  const bool fill = space.rank == 1 || (space.rank > 1 && space.sizes[static_cast<size_t>(space.rank - 1)] % widest == 0);
  if (fill && aligned) return f.template operator()<widest>();
  f.template operator()<1>();
}

template <class F, class T, class Z>
void apply(const char* name, const Broadcast& whole, F f, const T* a, const T* b, Z* z) {
  constexpr int widest = Pack<T>::size;
  const Op op(name, {{"n", whole.numel}, {"axes", whole.rank}});
  in_parts(whole, [&](const Broadcast& space, const std::array<int64_t, 3>& from, int64_t to) {
    const T *pa = a + from[0], *pb = b + from[1];
    const bool aligned = chunks_fit<widest>(space, 0, pa) && chunks_fit<widest>(space, 1, pb) && chunks_fit<widest>(z + to);
    with_chunks<widest>(space, aligned, [&]<int vec>() {
      const Space<2> chunked(space, vec);
      launch(op, combine<vec, F, T, Z>, blocks_for(chunked.chunks, threads * chunks_per_thread<vec>, INT32_MAX), threads, 0, stream(), chunked, f,
             operand(space, 0, pa), operand(space, 1, pb), z + to);
    });
  });
}

template <class T>
void select(const Broadcast& whole, const uint8_t* mask, const T* a, const T* b, T* z) {
  constexpr int widest = Pack<T>::size;
  const Op op("where", {{"n", whole.numel}, {"axes", whole.rank}});
  in_parts(whole, [&](const Broadcast& space, const std::array<int64_t, 3>& from, int64_t to) {
    const uint8_t* const pm = mask + from[0];
    const T *pa = a + from[1], *pb = b + from[2];
    const bool aligned = chunks_fit<widest>(space, 0, pm) && chunks_fit<widest>(space, 1, pa) && chunks_fit<widest>(space, 2, pb);
    with_chunks<widest>(space, aligned && chunks_fit<widest>(z + to), [&]<int vec>() {
      const Space<3> chunked(space, vec);
      launch(op, choose<vec, T>, blocks_for(chunked.chunks, threads * chunks_per_thread<vec>, INT32_MAX), threads, 0, stream(), chunked,
             operand(space, 0, pm), operand(space, 1, pa), operand(space, 2, pb), z + to);
    });
  });
}

// f(x, p) for integers.
template <class F, class T>
__global__ void __launch_bounds__(flat_threads) integer_map(Flat flat, F f, dptr<const T> x, dptr<T> y, T p) {
  flat.each<Pack<T>::size>([&](auto width, int64_t at) {
    constexpr int vec = decltype(width)::value;
    Chunk<T, vec> values = load_chunk<T, vec>(x + at);
    for (int k = 0; k < vec; ++k) values.at[k] = f(values.at[k], p);
    store_chunk<T, vec>(y + at, values);
  });
}
struct Negate {
  template <class T>
  __device__ T operator()(T x, T) const {
    return BinaryOp<Binary::sub>()(T(0), x);
  }
};
struct Magnitude {
  template <class T>
  __device__ T operator()(T x, T) const {
    if constexpr (std::is_signed_v<T>) {
      if (x < 0) return BinaryOp<Binary::sub>()(T(0), x);
    }
    return x;
  }
};

template <class T>
void unary_integer(Unary op, int64_t n, const T* x, T* y, double p) {
  const Flat flat = Flat::of<Pack<T>::size>(n, x, y);
  const auto map = [&]<class F>(F f) {
    launch(Op("unary", {{"n", n}}), integer_map<F, T>, flat.blocks<Pack<T>::size>(), flat_threads, 0, stream(), flat, f, x, y, static_cast<T>(p));
  };
  switch (op) {
    case Unary::neg: return map(Negate());
    case Unary::abs: return map(Magnitude());
    case Unary::add_scalar: return map(BinaryOp<Binary::add>());
    case Unary::mul_scalar: return map(BinaryOp<Binary::mul>());
    default: std::abort();
  }
}

template <class T>
struct CudaElementwise final : ElementwiseKernels<T> {
  static constexpr bool floating = std::is_floating_point_v<T>;

  void unary(Unary op, int64_t n, const T* x, T* y, double p) const override {
    if constexpr (floating) {
      cuda::unary(op, n, x, y, p);
    } else {
      unary_integer(op, n, x, y, p);
    }
  }

  void unary_backward(Unary op, int64_t n, const T* x, const T* y, const T* dy, T* dx, double p) const override {
    if constexpr (floating) {
      cuda::unary_backward(op, n, x, y, dy, dx, p);
    } else {
      std::abort();
    }
  }

  void binary(Binary op, const Broadcast& space, const T* a, const T* b, T* z) const override {
    switch (op) {
      case Binary::add: return apply("add", space, BinaryOp<Binary::add>(), a, b, z);
      case Binary::sub: return apply("sub", space, BinaryOp<Binary::sub>(), a, b, z);
      case Binary::mul: return apply("mul", space, BinaryOp<Binary::mul>(), a, b, z);
      case Binary::max: return apply("max", space, BinaryOp<Binary::max>(), a, b, z);
      case Binary::min: return apply("min", space, BinaryOp<Binary::min>(), a, b, z);
      default: break;
    }
    if constexpr (floating) {
      if (op == Binary::div) return apply("div", space, BinaryOp<Binary::div>(), a, b, z);
      if (op == Binary::pow) return apply("pow", space, BinaryOp<Binary::pow>(), a, b, z);
    }
    std::abort();
  }

  void compare(Compare op, const Broadcast& space, const T* a, const T* b, uint8_t* z) const override {
    apply("compare", space, CompareOp(op), a, b, z);
  }

  void where(const Broadcast& space, const uint8_t* mask, const T* a, const T* b, T* z) const override { select(space, mask, a, b, z); }

  void accumulate(int64_t n, const T* x, T* y) const override { apply("accumulate", line_of(n), BinaryOp<Binary::add>(), y, x, y); }
};

template <class T>
const ElementwiseKernels<T>& instance() {
  static const CudaElementwise<T> kernels;
  return kernels;
}

}  // namespace

}  // namespace cuda

template <>
const ElementwiseKernels<float>& CudaBackend::elementwise<float>() {
  return cuda::instance<float>();
}
template <>
const ElementwiseKernels<double>& CudaBackend::elementwise<double>() {
  return cuda::instance<double>();
}
template <>
const ElementwiseKernels<int64_t>& CudaBackend::elementwise<int64_t>() {
  return cuda::instance<int64_t>();
}
template <>
const ElementwiseKernels<uint8_t>& CudaBackend::elementwise<uint8_t>() {
  return cuda::instance<uint8_t>();
}

}  // namespace lamina::kernels
