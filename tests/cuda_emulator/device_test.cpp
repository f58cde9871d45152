// Devices, what they say of themselves and of pointers, pinned memory, pools; and the functions of device code that need no other thread.

#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>

#include "cuda_emulator/test_support.h"

using namespace lamina::test;

namespace {

__global__ void put(dptr<float> x, float value) { x[threadIdx.x] = value; }

__global__ void intrinsics(dptr<const float> in, dptr<float> reals, dptr<int> ints) {
  const float x = __ldg(in);
  const float of_reals[] = {x, rsqrtf(x), __fmaf_rn(x, x, 1), __fadd_rn(x, 1), __fmul_rn(x, 3), __frcp_rn(x), static_cast<float>(rsqrt(0.25))};
  const int of_ints[] = {__popc(0xF0F0),
                         __popcll(~0ULL),
                         __clz(1),
                         __clz(0),
                         __clzll(1),
                         __ffs(0),
                         __ffs(8),
                         __ffsll(1LL << 40),
                         __mulhi(-1, 1),
                         static_cast<int>(__umulhi(0x80000000, 6)),
                         __float_as_int(1.0F)};
  for (int i = 0; i < 7; ++i) reals[i] = of_reals[i];
  for (int i = 0; i < 11; ++i) ints[i] = of_ints[i];
  reals[7] = __int_as_float(0x40490FDB);
  ints[11] = static_cast<int>(__umul64hi(0xFFFFFFFFFFFFFFFFULL, 0xFFFFFFFFFFFFFFFFULL));
}

__global__ void swap_first(dptr<int> x) {
  if (threadIdx.x == 0) x[1] = atomicCAS(x, 5, 6);
  if (threadIdx.x == 0) x[2] = atomicCAS(x, 5, 7);
}

/// So many devices while it lives.
class DeviceCount {
 public:
  explicit DeviceCount(int count) { cuda_emulator::set_device_count(count); }
  ~DeviceCount() {
    cudaSetDevice(0);
    cuda_emulator::set_device_count(1);
    cudaGetLastError();
  }
  DeviceCount(const DeviceCount&) = delete;
  DeviceCount& operator=(const DeviceCount&) = delete;
};

cudaPointerAttributes attributes_of(const void* pointer) {
  cudaPointerAttributes attributes{};
  require_success(cudaPointerGetAttributes(&attributes, pointer));
  return attributes;
}

}  // namespace

TEST_CASE("emulated devices: what they are") {
  cudaDeviceProp properties{};
  require_success(cudaGetDeviceProperties(&properties, 0));
  CHECK(std::string(properties.name) == "emulated GPU");
  CHECK(properties.warpSize == 32);
  CHECK(properties.totalGlobalMem == cuda_emulator::device_bytes());
  int value = 0;
  require_success(cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMajor, 0));
  CHECK(value == properties.major);
  require_success(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0));
  CHECK(value == properties.multiProcessorCount);
  CHECK(cudaDeviceGetAttribute(&value, static_cast<cudaDeviceAttr>(9999), 0) == cudaErrorInvalidValue);
  CHECK(cudaPeekAtLastError() == cudaErrorInvalidValue);
  CHECK(cudaGetLastError() == cudaErrorInvalidValue);
  CHECK(cudaPeekAtLastError() == cudaSuccess);
  CHECK(cudaGetDeviceProperties(&properties, 1) == cudaErrorInvalidDevice);
  cudaGetLastError();
  int runtime = 0, driver = 0;
  require_success(cudaRuntimeGetVersion(&runtime));
  require_success(cudaDriverGetVersion(&driver));
  CHECK(runtime == CUDART_VERSION);
  CHECK(driver >= runtime);
}

TEST_CASE("emulated devices: CUDA_VISIBLE_DEVICES hides them (H05)") {
  const DeviceCount two(2);
  const auto count = [](const char* visible) {
    setenv("CUDA_VISIBLE_DEVICES", visible, 1);
    int found = -7;
    const cudaError_t status = cudaGetDeviceCount(&found);
    unsetenv("CUDA_VISIBLE_DEVICES");
    return std::pair(status, found);
  };
  CHECK(count("") == std::pair(cudaErrorNoDevice, -7));
  CHECK(count("-1") == std::pair(cudaErrorNoDevice, -7));
  CHECK(count("1") == std::pair(cudaSuccess, 1));
  CHECK(count("0,1") == std::pair(cudaSuccess, 2));
  CHECK(count("0,5,1") == std::pair(cudaSuccess, 1));
  CHECK(std::string(cudaGetErrorString(cudaErrorNoDevice)) == "no CUDA-capable device is detected");
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  void* memory = nullptr;
  cudaStream_t made = nullptr;
  CHECK(cudaSetDevice(0) == cudaErrorNoDevice);
  CHECK(cudaMalloc(&memory, 4) == cudaErrorNoDevice);
  CHECK(cudaHostAlloc(&memory, 4, 0) == cudaErrorNoDevice);
  CHECK(cudaStreamCreateWithFlags(&made, 0) == cudaErrorNoDevice);
  unsetenv("CUDA_VISIBLE_DEVICES");
  cudaGetLastError();
}

TEST_CASE("emulated devices: two of them, each with its memory and streams") {
  const DeviceArray<float> on_first(std::vector<float>{1});
  const DeviceCount two(2);
  const cudaStream_t first_stream = stream();
  const size_t first_bytes = cuda_emulator::device_bytes_in_use();
  CHECK(cudaSetDevice(2) == cudaErrorInvalidDevice);
  CHECK(cudaGetLastError() == cudaErrorInvalidDevice);
  require_success(cudaSetDevice(1));
  int device = -1;
  require_success(cudaGetDevice(&device));
  CHECK(device == 1);
  cudaStream_t own = nullptr;
  require_success(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking));
  {
    const Op op("test", {});
    const DeviceArray<float> on_second(1);
    CHECK(cuda_emulator::device_bytes_in_use() == 4);
    CHECK(cuda_emulator::device_bytes_in_use(0) == first_bytes);
    CHECK(attributes_of(on_second.data()).device == 1);
    CHECK(attributes_of(on_first.data()).device == 0);
    launch(op, put, 1, 1, 0, own, on_second.data(), 2.0F);
    CHECK_THAT(error_of([&] { launch(op, put, 1, 1, 0, own, on_first.data(), 2.0F); }), contains("is passed to device 1, but belongs to device 0"));
    CHECK(cuda_emulator::launch("test", nullptr, 1, 1, 0, first_stream, [] {}) == cudaErrorInvalidResourceHandle);
    cudaGetLastError();
    require_success(cudaMemcpyPeerAsync(on_first.data(), 0, on_second.data(), 1, 4, own));
    CHECK(cudaMemcpyPeerAsync(on_first.data(), 1, on_second.data(), 1, 4, own) == cudaErrorInvalidValue);
    cudaGetLastError();
  }
  CHECK(cuda_emulator::device_bytes_in_use() == 0);
  require_success(cudaStreamDestroy(own));
  require_success(cudaSetDevice(0));
  CHECK(on_first.host() == std::vector<float>{2});
}

TEST_CASE("emulated memory: what a pointer is") {
  const DeviceArray<float> x(4);
  float* pinned = nullptr;
  require_success(cudaMallocHost(reinterpret_cast<void**>(&pinned), 16));
  float host = 0;
  CHECK(attributes_of(x.data() + 1).type == cudaMemoryTypeDevice);
  CHECK(attributes_of(x.data() + 1).devicePointer == x.data() + 1);
  CHECK(attributes_of(pinned + 3).type == cudaMemoryTypeHost);
  CHECK(attributes_of(pinned + 4).type == cudaMemoryTypeUnregistered);
  CHECK(attributes_of(&host).type == cudaMemoryTypeUnregistered);
  CHECK(attributes_of(nullptr).type == cudaMemoryTypeUnregistered);
  CHECK_THAT(cuda_emulator::leaks(), contains("leak: pinned host memory (16 bytes)"));
  CHECK_THAT(error_of([&] { cudaFreeHost(pinned + 1); }), contains("which is not pinned host memory"));
  require_success(cudaFreeHost(pinned));
  CHECK_THAT(error_of([&] { cudaFreeHost(&host); }), contains("which is not pinned host memory"));
  CHECK(cudaHostAlloc(reinterpret_cast<void**>(&pinned), 16, 999) == cudaErrorInvalidValue);
  cudaGetLastError();
}

TEST_CASE("emulated memory: the pool") {
  cudaMemPool_t pool = nullptr;
  require_success(cudaDeviceGetDefaultMemPool(&pool, 0));
  uint64_t threshold = std::numeric_limits<uint64_t>::max(), read = 0;
  require_success(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
  require_success(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &read));
  CHECK(read == threshold);
  require_success(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &read));
  CHECK(read == cuda_emulator::device_bytes_in_use());
  require_success(cudaMemPoolTrimTo(pool, 0));
  CHECK(cudaMemPoolTrimTo(nullptr, 0) == cudaErrorInvalidValue);
  CHECK(cudaDeviceGetDefaultMemPool(&pool, 3) == cudaErrorInvalidDevice);
  cudaGetLastError();
}

TEST_CASE("emulator: intrinsics") {
  const DeviceArray<float> in(std::vector<float>{4}), reals(8);
  const DeviceArray<int> ints(12);
  start(intrinsics, 1, 1, 0, in.data(), reals.data(), ints.data());
  CHECK(reals.host() == std::vector<float>{4, 0.5, 17, 5, 12, 0.25, 2, 3.14159274F});
  CHECK(ints.host() == std::vector<int>{8, 64, 31, 32, 63, 0, 4, 41, -1, 3, 0x3F800000, -2});
  const DeviceArray<int> x(std::vector<int>{5, 0, 0});
  start(swap_first, 1, 2, 0, x.data());
  CHECK(x.host() == std::vector<int>{6, 5, 6});
}
