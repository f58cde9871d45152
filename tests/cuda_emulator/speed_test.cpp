// What the emulator costs: hidden, since it asserts nothing about time. Run with `cuda_emulator_tests [.speed]`.

#include <cublas_v2.h>

#include <chrono>
#include <cstdio>

#include "cuda_emulator/test_support.h"

using namespace lamina::test;

namespace {

__global__ void nothing(int64_t) {}
__global__ void one_barrier() { __syncthreads(); }
__global__ void warp_sum(dptr<float> out) {
  float sum = 1;
  for (int distance = warp_size / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(all_lanes, sum, distance);
  if (threadIdx.x % warp_size == 0) out[threadIdx.x / warp_size] = sum;
}
template <class T>
__global__ void scale(int64_t n, dptr<const T> x, T factor, dptr<T> y) {
  const int64_t threads = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += threads) y[i] = factor * x[i];
}
__global__ void add_pack(int64_t n, dptr<const float> x, dptr<float> y) {
  const int64_t i = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * 4;
  if (i < n) store_pack<float>(y + i, load_pack<float>(x + i));
}
__global__ void shared_turns(int turns) {
  __shared__ shared_array<float, 256> memory;
  const int t = static_cast<int>(threadIdx.x);
  for (int i = 0; i < turns; ++i) memory[t] = static_cast<float>(i);
}

// Seconds of f(), the least of three times `repeats`.
template <class F>
double seconds(int repeats, F&& f) {
  double least = 1e9;
  for (int round = 0; round < 3; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < repeats; ++i) f();
    least = std::min(least, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / repeats);
  }
  return least;
}

void show(const char* what, double value, const char* unit) { std::printf("%-58s %9.2f %s\n", what, value, unit); }

}  // namespace

TEST_CASE("emulator: what launches, accesses, allocations and products cost", "[.speed]") {
  show("launch, 1 block of 256 threads that do nothing", 1e6 * seconds(2000, [] { start(nothing, 1, 256, 0, int64_t{0}); }), "us");
  show("launch, 1 block of 256 threads and a barrier", 1e6 * seconds(500, [] { start(one_barrier, 1, 256, 0); }), "us");
  const DeviceArray<float> sums(8);
  show("launch, 8 warps with five shuffles", 1e6 * seconds(200, [&] { start(warp_sum, 1, 256, 0, sums.data()); }), "us");
  constexpr int64_t n = 1 << 16;
  const DeviceArray<float> x(std::vector<float>(n, 1.0F)), y(n);
  const DeviceArray<double> xd(std::vector<double>(n, 1.0)), yd(n);
  const double f32 = seconds(5, [&] { start(scale<float>, 64, 256, 0, n, x.data(), 2.0F, y.data()); });
  const double f64 = seconds(5, [&] { start(scale<double>, 64, 256, 0, n, xd.data(), 2.0, yd.data()); });
  const double packs = seconds(5, [&] { start(add_pack, 64, 256, 0, n, x.data(), y.data()); });
  show("load or store, f32", 1e9 * f32 / (2 * n), "ns");
  show("load or store, f64", 1e9 * f64 / (2 * n), "ns");
  show("load or store, one float of a pack", 1e9 * packs / (2 * n), "ns");
  show("store in a shared array", 1e9 * seconds(5, [&] { start(shared_turns, 1, 256, 0, 100); }) / 25'600, "ns");
  for (const size_t bytes : {size_t{400}, size_t{1} << 20})
    show(bytes < 1000 ? "cudaMalloc and cudaFree, 400 bytes" : "the same, 1 MiB",
         1e6 * seconds(500,
                       [&] {
                         void* memory = nullptr;
                         require_success(cudaMalloc(&memory, bytes));
                         require_success(cudaFree(memory));
                       }),
         "us");
  cublasHandle_t handle = nullptr;
  REQUIRE(cublasCreate(&handle) == CUBLAS_STATUS_SUCCESS);
  const float one = 1, zero = 0;
  constexpr int m = 200;
  const double products =
      seconds(3, [&] { cublasSgemm(handle, CUBLAS_OP_T, CUBLAS_OP_N, m, m, m, &one, x.data(), m, x.data(), m, &zero, y.data(), m); });
  show("cublasSgemm, 200 x 200 x 200", 2e-9 * m * m * m / products, "GFLOP/s");
  cublasDestroy(handle);
}
