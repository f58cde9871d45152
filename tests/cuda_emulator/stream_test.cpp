// Streams that do things as late as they may, events, and host memory that is used meanwhile.

#include "cuda_emulator/test_support.h"

using namespace lamina::test;

namespace {

__global__ void put(dptr<float> x, float value) { x[threadIdx.x] = value; }

/// Streams are delayed while it lives.
class Delayed {
 public:
  Delayed() { cuda_emulator::set_async(true); }
  ~Delayed() { cuda_emulator::set_async(false); }
  Delayed(const Delayed&) = delete;
  Delayed& operator=(const Delayed&) = delete;
};

class Pinned {
 public:
  explicit Pinned(size_t n) { require_success(cudaHostAlloc(reinterpret_cast<void**>(&memory_), n * sizeof(float), cudaHostAllocDefault)); }
  ~Pinned() { cudaFreeHost(memory_); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  float& operator[](size_t i) const { return memory_[i]; }
  float* data() const { return memory_; }

 private:
  float* memory_ = nullptr;
};

}  // namespace

TEST_CASE("emulated streams, delayed: pinned memory that is changed or read too early (H04)") {
  const Pinned from(1), back(1);
  const DeviceArray<float> x(1);
  from[0] = 1;
  back[0] = 0;
  {
    const Delayed delayed;
    require_success(cudaMemcpyAsync(x.data(), from.data(), 4, cudaMemcpyHostToDevice, stream()));
    from[0] = 2;  // too early: it is this that gets copied
    require_success(cudaMemcpyAsync(back.data(), x.data(), 4, cudaMemcpyDeviceToHost, stream()));
    CHECK(back[0] == 0);  // so is reading
    require_success(cudaStreamSynchronize(stream()));
    CHECK(back[0] == 2);
  }
  require_success(cudaMemcpyAsync(x.data(), from.data(), 4, cudaMemcpyHostToDevice, stream()));
  from[0] = 3;
  CHECK(x.host() == std::vector<float>{2});  // at once, when not delayed
}

TEST_CASE("emulated streams, delayed: pageable memory belongs to the caller again on return") {
  const Delayed delayed;
  const DeviceArray<float> x(1);
  float from = 1, back = 0;
  require_success(cudaMemcpyAsync(x.data(), &from, 4, cudaMemcpyHostToDevice, stream()));
  from = 2;
  require_success(cudaMemcpyAsync(&back, x.data(), 4, cudaMemcpyDeviceToHost, stream()));
  CHECK(back == 1);
}

TEST_CASE("emulated streams, delayed: launches wait, and a copy of another stream does not wait for them") {
  const DeviceArray<float> x(std::vector<float>{1});
  const Delayed delayed;
  start(put, 1, 1, 0, x.data(), 5.0F);
  float host = 0;
  require_success(cudaMemcpy(&host, x.data(), 4, cudaMemcpyDeviceToHost));  // the stream is non-blocking
  CHECK(host == 1);
  CHECK(cudaStreamQuery(stream()) == cudaErrorNotReady);
  CHECK(cudaStreamQuery(stream()) == cudaSuccess);  // who asks again gets there
  CHECK(x.host() == std::vector<float>{5});
  cudaStream_t blocking = nullptr;
  require_success(cudaStreamCreateWithFlags(&blocking, cudaStreamDefault));
  require_success(cudaMemsetAsync(x.data(), 0, 4, blocking));
  require_success(cudaMemcpy(&host, x.data(), 4, cudaMemcpyDeviceToHost));
  CHECK(host == 0);
  require_success(cudaStreamDestroy(blocking));
  CHECK(cudaStreamSynchronize(blocking) == cudaErrorInvalidResourceHandle);
  cudaGetLastError();
}

TEST_CASE("emulated streams, delayed: memory freed in stream order, and too early") {
  const Delayed delayed;
  float* memory = nullptr;
  require_success(cudaMallocAsync(reinterpret_cast<void**>(&memory), 4, stream()));
  start(put, 1, 1, 0, memory, 5.0F);
  require_success(cudaFreeAsync(memory, stream()));
  require_success(cudaStreamSynchronize(stream()));
  require_success(cudaMallocAsync(reinterpret_cast<void**>(&memory), 4, stream()));
  require_success(cudaFreeAsync(memory, stream()));
  start(put, 1, 1, 0, memory, 5.0F);
  CHECK_THAT(error_of([] { cudaStreamSynchronize(stream()); }), contains("[test] block (0, 0, 0)") && contains("after it was freed"));
  // The pool gives to one what another freed, even if that has still to be done.
  const size_t before = cuda_emulator::device_bytes();
  cuda_emulator::set_device_bytes(cuda_emulator::device_bytes_in_use() + 1000);
  for (int i = 0; i < 3; ++i) {
    require_success(cudaMallocAsync(reinterpret_cast<void**>(&memory), 900, stream()));
    require_success(cudaFreeAsync(memory, stream()));
  }
  cuda_emulator::set_device_bytes(before);
}

TEST_CASE("emulated events: recorded, reached, in between") {
  const DeviceArray<float> x(1);
  cudaEvent_t start_event = nullptr, end = nullptr, untimed = nullptr;
  require_success(cudaEventCreate(&start_event));
  require_success(cudaEventCreate(&end));
  require_success(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
  CHECK(cudaEventQuery(end) == cudaSuccess);  // never recorded: nothing to wait for
  require_success(cudaEventSynchronize(end));
  float milliseconds = -1;
  CHECK(cudaEventElapsedTime(&milliseconds, start_event, end) == cudaErrorInvalidResourceHandle);
  {
    const Delayed delayed;
    require_success(cudaEventRecord(start_event, stream()));
    start(put, 1, 1, 0, x.data(), 1.0F);
    require_success(cudaEventRecord(end, stream()));
    start(put, 1, 1, 0, x.data(), 2.0F);
    CHECK(cudaEventElapsedTime(&milliseconds, start_event, end) == cudaErrorNotReady);
    CHECK(cudaEventQuery(end) == cudaErrorNotReady);
    require_success(cudaEventSynchronize(end));
    float host = 0;
    require_success(cudaMemcpy(&host, x.data(), 4, cudaMemcpyDeviceToHost));
    CHECK(host == 1);  // what came after the event is not done yet
    CHECK(cudaEventQuery(end) == cudaSuccess);
    require_success(cudaEventElapsedTime(&milliseconds, start_event, end));
    CHECK(milliseconds >= 0);
  }
  CHECK(x.host() == std::vector<float>{2});
  require_success(cudaEventRecord(untimed, stream()));
  CHECK(cudaEventElapsedTime(&milliseconds, start_event, untimed) == cudaErrorInvalidResourceHandle);
  cudaGetLastError();
  for (const cudaEvent_t event : {start_event, end, untimed}) require_success(cudaEventDestroy(event));
}

TEST_CASE("emulated streams: one waits for an event of another") {
  const Delayed delayed;
  const DeviceArray<float> x(1);
  cudaStream_t other = nullptr;
  cudaEvent_t event = nullptr;
  require_success(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  require_success(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  require_success(cudaMemsetAsync(x.data(), 0, 4, other));
  require_success(cudaEventRecord(event, other));
  require_success(cudaStreamWaitEvent(stream(), event));
  start(put, 1, 1, 0, x.data(), 7.0F);
  require_success(cudaStreamSynchronize(stream()));
  require_success(cudaStreamSynchronize(other));
  CHECK(x.host() == std::vector<float>{7});
  int calls = 0;
  require_success(cudaLaunchHostFunc(
      other, [](void* data) { ++*static_cast<int*>(data); }, &calls));
  CHECK(calls == 0);
  require_success(cudaStreamDestroy(other));
  CHECK(calls == 1);
  require_success(cudaEventDestroy(event));
}

TEST_CASE("emulated copies: rows with a pitch") {
  const DeviceArray<float> x(std::vector<float>(6, 0.0F));
  const std::vector<float> from{1, 2, 9, 3, 4, 9};
  require_success(cudaMemcpy2DAsync(x.data() + 1, 12, from.data(), 12, 8, 2, cudaMemcpyHostToDevice, stream()));
  CHECK(x.host() == std::vector<float>{0, 1, 2, 0, 3, 4});
  std::vector<float> back(4, 0.0F);
  require_success(cudaMemcpy2DAsync(back.data(), 8, x.data() + 1, 12, 8, 2, cudaMemcpyDeviceToHost, stream()));
  require_success(cudaStreamSynchronize(stream()));
  CHECK(back == std::vector<float>{1, 2, 3, 4});
  CHECK(cudaMemcpy2DAsync(back.data(), 4, x.data(), 12, 8, 2, cudaMemcpyDeviceToHost, stream()) == cudaErrorInvalidPitchValue);
  cudaGetLastError();
  CHECK_THAT(error_of([&] { cudaMemcpy2DAsync(x.data() + 1, 8, from.data(), 8, 8, 3, cudaMemcpyHostToDevice, stream()); }),
             contains("cudaMemcpy2DAsync: 8 bytes from byte 20"));
}
