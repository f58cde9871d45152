#pragma once
// The seam between CUDA kernels and what runs them: nvcc and a GPU, or tests/cuda_emulator under any C++ compiler. Kernels use device memory through
// dptr<T> and shared memory through shared<T> and shared_array<T, n>, and are started by launch(); written so, they read the same under both. The
// number of threads in a warp is known here and nowhere else.

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <utility>

namespace lamina::kernels::cuda {

constexpr int warp_size = 32;
constexpr unsigned all_lanes = 0xFFFFFFFF;  // the mask of a whole warp

/// The operation that a call of CUDA serves, for error texts: its name and sizes, in the style Op("row_norm", {{"rows", 3}, {"width", 784}}).
class Op {
 public:
  struct Size {
    const char* name;
    int64_t value;
  };
  static constexpr int max_sizes = 6;  // the rest is not shown
  Op(const char* name, std::initializer_list<Size> sizes) : name_(name) {
    for (const Size& size : sizes)
      if (count_ < max_sizes) sizes_[count_++] = size;
  }
  /// The same operation in one of several kernels.
  Op at(const char* stage) const {
    Op result = *this;
    result.stage_ = stage;
    return result;
  }
  const char* name() const { return name_; }
  const char* stage() const { return stage_; }  // null: the operation has one
  const Size* begin() const { return sizes_; }
  const Size* end() const { return sizes_ + count_; }

 private:
  const char *name_, *stage_ = nullptr;
  Size sizes_[max_sizes] = {};
  int count_ = 0;
};

/// Throws Error "[row_norm] CUDA: invalid argument (cudaErrorInvalidValue) in cudaMemcpy; rows 3, width 784" unless status is cudaSuccess.
void check(const Op& op, cudaError_t status, const char* call);

/// The same for a launch, with grid, block and shared memory in the text.
void check_launch(const Op& op, cudaError_t status, dim3 grid, dim3 block, size_t shared_bytes);

/// The stream on which lamina does everything on the current GPU, so that its launches and copies are ordered; made at the first use.
cudaStream_t stream();

void* allocate_scratch(const Op& op, size_t bytes);
void free_scratch(void* memory, size_t bytes) noexcept;

/// Memory from the pool of tensors for the length of a scope: kernels of the stream that were launched meanwhile may use it.
template <class T>
class Scratch {
 public:
  Scratch(const Op& op, int64_t n) : bytes_(n > 0 ? static_cast<size_t>(n) * sizeof(T) : 0), data_(static_cast<T*>(allocate_scratch(op, bytes_))) {}
  ~Scratch() { free_scratch(data_, bytes_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  T* data() const { return data_; }

 private:
  size_t bytes_;
  T* data_;
};

/// Blocks for `work` items, `per_block` each; at most `most`, so kernels loop (with 64-bit numbers).
inline unsigned blocks_for(int64_t work, int64_t per_block, int64_t most) {
  const int64_t blocks = (work + per_block - 1) / per_block;
  return static_cast<unsigned>(blocks < most ? blocks : most);
}

/// Bytes of dynamic shared memory that a block can have on this device, when allow_shared asked for them.
size_t most_shared_bytes(const Op& op);

/// Whether p and sizes in multiples of n elements allow 16-byte accesses.
template <class T>
bool packs_fit(const T* p, int64_t n = 0) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0 && static_cast<uint64_t>(n) * sizeof(T) % 16 == 0;
}

/// 16 bytes: what a thread can load or store at once.
template <class T>
struct alignas(16) Pack {
  static constexpr int size = 16 / static_cast<int>(sizeof(T));
  T at[size];
};

#if defined(__CUDACC__)

/// T* in device memory.
template <class T>
using dptr = T*;

/// A __shared__ variable: `__shared__ shared_array<float, 32> sums;`.
template <class T, int n>
struct shared_array {
  T values[n];
  __device__ T& operator[](int64_t i) { return values[i]; }
  __device__ operator T*() { return values; }
};

/// n elements of the block's dynamic shared memory, from byte `from` on.
template <class T>
__device__ inline T* shared(int64_t /*n*/, int64_t from = 0) {
  extern __shared__ __align__(16) unsigned char lamina_dynamic_shared[];
  return reinterpret_cast<T*>(lamina_dynamic_shared + from);
}

template <class T>
__device__ inline Pack<T> load_pack(const T* p) {
  return *reinterpret_cast<const Pack<T>*>(p);
}
template <class T>
__device__ inline void store_pack(T* p, const Pack<T>& values) {
  *reinterpret_cast<Pack<T>*>(p) = values;
}

#elif defined(CUDA_EMULATOR)

template <class T>
using dptr = cuda_emulator::Pointer<T>;

template <class T, int n>
using shared_array = cuda_emulator::SharedArray<T, n>;

template <class T>
dptr<T> shared(int64_t n, int64_t from = 0) {
  return cuda_emulator::shared<T>(static_cast<size_t>(n), static_cast<size_t>(from));
}

template <class T>
Pack<T> load_pack(std::type_identity_t<dptr<const T>> p) {
  Pack<T> values;
  p.load_all(values.at, Pack<T>::size, "16-byte read");
  return values;
}
template <class T>
void store_pack(std::type_identity_t<dptr<T>> p, const Pack<T>& values) {
  p.store_all(values.at, Pack<T>::size, "16-byte write");
}

#endif

#if defined(__CUDACC__) || defined(CUDA_EMULATOR)

/// Lets blocks of this kernel have `bytes` of dynamic shared memory. Needed where this and __shared__ variables together are above 48 KB.
template <class... P>
void allow_shared(const Op& op, void (*kernel)(P...), size_t bytes) {
  if (bytes <= 32 * 1024) return;
  check(op, cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        "cudaFuncSetAttribute");
}

/// kernel<<<grid, block, shared_bytes, stream>>>(args...), checked. Raw device pointers become dptr. A grid without blocks is no launch.
template <class... P, class... A>
void launch(const Op& op, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream, A&&... args) {
  static_assert(sizeof...(P) == sizeof...(A));
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
#if defined(__CUDACC__)
  kernel<<<grid, block, shared_bytes, stream>>>(static_cast<P>(std::forward<A>(args))...);
  const cudaError_t status = cudaGetLastError();
#else
  const auto body = [kernel, ... values = static_cast<P>(std::forward<A>(args))] { kernel(values...); };
  const cudaError_t status =
      cuda_emulator::launch(op.stage() ? op.stage() : op.name(), reinterpret_cast<const void*>(kernel), grid, block, shared_bytes, stream, body);
  cudaGetLastError();
#endif
  check_launch(op, status, grid, block, shared_bytes);
}

#endif

}  // namespace lamina::kernels::cuda
