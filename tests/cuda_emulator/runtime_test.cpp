// The runtime API's stand-in and the seam above it: limits, errors, memory, leaks, host access.

#include <sys/wait.h>
#include <unistd.h>

#include <cmath>

#include "cuda_emulator/test_support.h"
#include "lamina/core/error.h"
#include "lamina/core/memory.h"

using namespace lamina;
using namespace lamina::test;

namespace {

__global__ void nothing() {}
__global__ void use_static(int) {
  __shared__ shared_array<float, 3000> memory;
  memory[0] = 1;
}
__global__ void deep(dptr<int> out, int depth) {
  volatile char room[1024] = {};
  room[depth % 1024] = 1;
  if (depth > 0) deep(out, depth - 1);
  out[0] = room[depth % 1024];
}

// What a process of its own writes to stderr while it does f, and how it ended.
struct Ending {
  std::string text;
  int status = 0;
};
template <class F>
Ending in_a_process(F&& f) {
  int ends[2] = {};
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    dup2(ends[1], STDOUT_FILENO);
    f();
    _exit(0);
  }
  close(ends[1]);
  Ending result;
  char buffer[512];
  for (ssize_t n = 0; (n = read(ends[0], buffer, sizeof buffer)) > 0;) result.text.append(buffer, static_cast<size_t>(n));
  close(ends[0]);
  waitpid(child, &result.status, 0);
  return result;
}

template <class F>
std::string launch_error(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("emulator: launches beyond the limits fail as on a GPU, with names and numbers (H02, H04, H07)") {
  const Op op("row_norm", {{"rows", 3}, {"width", 784}});
  const auto text = [&](dim3 grid, dim3 block, size_t shared_bytes = 0) {
    return launch_error([&] { launch(op.at("row_forward"), nothing, grid, block, shared_bytes, stream()); });
  };
  CHECK(text(1, 2048) ==
        "[row_norm] CUDA: invalid configuration argument (cudaErrorInvalidConfiguration) in the launch of row_forward with grid [1, 1, 1], block "
        "[2048, 1, 1], 0 bytes of shared memory; rows 3, width 784");
  CHECK_THAT(text(1, dim3(33, 32)), contains("invalid configuration"));
  CHECK_THAT(text(1, dim3(1, 1, 65)), contains("invalid configuration"));
  CHECK_THAT(text(dim3(1, 65536), 1), contains("invalid configuration"));
  CHECK_THAT(text(dim3(1, 1, 65536), 1), contains("invalid configuration"));
  CHECK_THAT(text(1, 1, 49153), contains("[row_norm] CUDA: invalid argument"));
  CHECK(text(1, 1024, 49152).empty());
  CHECK(text(dim3(70'000, 1), 1).empty());
  CHECK(text(dim3(0, 5), 1).empty());  // no blocks, no launch
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("emulator: shared memory beyond 48 KB must be asked for") {
  const Op op("test", {});
  CHECK_THAT(error_of([&] { launch(op, use_static, 1, 1, 40'000, stream(), 0); }),
             contains("52000 bytes of dynamic and static shared memory, the limit is 49152"));
  allow_shared(op, use_static, 100'000);
  launch(op, use_static, 1, 1, 100'000, stream(), 0);
  CHECK_THAT(launch_error([&] { launch(op, use_static, 1, 1, 100'001, stream(), 0); }), contains("invalid argument"));
  CHECK_THAT(launch_error([&] { allow_shared(op, use_static, most_shared_bytes(op) + 1); }),
             contains("[test] CUDA: invalid argument (cudaErrorInvalidValue) in cudaFuncSetAttribute"));
}

TEST_CASE("emulator: copies stay inside, go the way they say, and carry what was not written") {
  const DeviceArray<int> a(std::vector<int>{1, 2, 3, 4}), b(4);
  int host[8] = {};
  CHECK_THAT(error_of([&] { cudaMemcpy(host, a.data(), 20, cudaMemcpyDeviceToHost); }),
             contains("cudaMemcpy: 20 bytes from byte 0 of device memory"));
  CHECK_THAT(error_of([&] { cudaMemcpy(host, a.data(), 16, cudaMemcpyHostToDevice); }), contains("the direction does not fit"));
  require_success(cudaMemcpy(b.data() + 1, a.data(), 8, cudaMemcpyDeviceToDevice));
  require_success(cudaMemcpy(host, b.data() + 1, 8, cudaMemcpyDeviceToHost));
  CHECK((host[0] == 1 && host[1] == 2));
  CHECK_THAT(error_of([&] { cudaMemcpy(host, b.data(), 8, cudaMemcpyDeviceToHost); }), contains("never written"));
  const DeviceArray<int> c(2);
  require_success(cudaMemcpy(c.data(), b.data() + 2, 8, cudaMemcpyDefault));
  CHECK_THAT(error_of([&] { static_cast<void>(c.host()); }), contains("byte 4 of device memory"));
  require_success(cudaMemset(c.data(), 0, 8));
  CHECK(c.host() == std::vector<int>{0, 0});
  CHECK_THAT(error_of([&] { start(deep, 1, 1, 0, host, 0); }), contains("is not device memory"));
}

TEST_CASE("emulator: out of memory is an error that can be handled, with the bytes") {
  lamina::release_cached_memory(lamina::Device::cuda());
  const size_t before = cuda_emulator::device_bytes();
  cuda_emulator::set_device_bytes(cuda_emulator::device_bytes_in_use() + 1000);
  void* memory = nullptr;
  CHECK(cudaMalloc(&memory, 2000) == cudaErrorMemoryAllocation);
  CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
  const std::string text = launch_error([] { const Scratch<float> scratch(Op("adam", {{"n", 500}}), 500); });
  CHECK_THAT(text, contains("[adam] out of memory on cuda:0: wanted 2048 bytes, 0 bytes held by live tensors, 0 bytes cached, 1000 bytes of "));
  CHECK_THAT(text, contains(" free on the GPU; n 500"));
  cuda_emulator::set_device_bytes(before);
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("emulator: leaks and wrong frees") {
  void* memory = nullptr;
  require_success(cudaMalloc(&memory, 123));
  CHECK_THAT(cuda_emulator::leaks(), contains("leak: device memory #") && contains("(123 bytes) was never freed"));
  CHECK_THAT(error_of([&] { cudaFree(static_cast<char*>(memory) + 4); }), contains("free of an address inside device memory"));
  require_success(cudaFree(memory));
  CHECK(cuda_emulator::leaks().empty());
  int host = 0;
  CHECK_THAT(error_of([&] { cudaFree(&host); }), contains("which is not device memory"));
  // At the end of a process.
  const Ending ending = in_a_process([] {
    void* lost = nullptr;
    static_cast<void>(cudaMalloc(&lost, 77));
    std::exit(0);
  });
  CHECK_THAT(ending.text, contains("[cuda_emulator] leak: device memory #") && contains("(77 bytes)"));
  CHECK(WIFEXITED(ending.status));
  CHECK(WEXITSTATUS(ending.status) == 1);
}

TEST_CASE("emulator: host code that touches device memory is stopped there") {
  const DeviceArray<int> memory(std::vector<int>{5});
  volatile int* const raw = memory.data();
  const Ending ending = in_a_process([&] { *raw = *raw + 1; });
  CHECK_THAT(ending.text, contains("[cuda_emulator] device memory was touched without a dptr, by host code"));
  CHECK_FALSE((WIFEXITED(ending.status) && WEXITSTATUS(ending.status) == 0));
  const dptr<int> checked(memory.data());
  CHECK_THAT(error_of([&] { checked[0] = 1; }), contains("[host]: write of device memory #") && contains("by host code"));
}

TEST_CASE("emulator: a thread that overflows its stack is reported") {
  const DeviceArray<int> out(1);
  start(deep, 1, 1, 0, out.data(), 10);
  const Ending ending = in_a_process([&] { start(deep, 1, 1, 0, out.data(), 100'000); });
  CHECK_THAT(ending.text, contains("[cuda_emulator] a thread of a kernel overflowed its stack"));
  CHECK_FALSE((WIFEXITED(ending.status) && WEXITSTATUS(ending.status) == 0));
}

TEST_CASE("emulator: addresses are not used again soon, and are after 64 GiB") {
  void *first = nullptr, *second = nullptr;
  require_success(cudaMalloc(&first, 100));
  require_success(cudaFree(first));
  require_success(cudaMalloc(&second, 100));
  CHECK(first != second);
  require_success(cudaFree(second));
}

TEST_CASE("emulator: machines without a GPU or with an old driver (H05)") {
  int count = -7;
  CHECK(cudaGetDeviceCount(&count) == cudaSuccess);
  CHECK(count == 1);
  cuda_emulator::set_device_count(0, cudaErrorInsufficientDriver);
  count = -7;
  CHECK(cudaGetDeviceCount(&count) == cudaErrorInsufficientDriver);
  CHECK(count == -7);
  CHECK_THAT(launch_error([] { check(Op("device", {}), cudaSetDevice(0), "cudaSetDevice"); }), contains("[device] CUDA: "));
  cuda_emulator::set_device_count(1);
  CHECK(cudaGetLastError() == cudaSuccess);  // what was reported is not found again
}
