// Streams and events.

#include "cuda_emulator/streams.h"

#include <chrono>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "cuda_emulator/heap.h"
#include "cuda_emulator/report.h"

namespace cuda_emulator {

namespace {

bool async = [] {
  const char* const value = std::getenv("CUDA_EMULATOR_ASYNC");
  return value && std::string_view(value) != "0" && *value != '\0';
}();

struct Streams {
  std::map<cudaStream_t, std::unique_ptr<CUstream_st>> made;
  std::map<int, CUstream_st> legacy;  // of each device

  template <class F>
  void each(F&& f) {
    for (auto& [handle, stream] : made) f(*stream);
    for (auto& [device, stream] : legacy) f(stream);
  }
};
Streams& streams() {
  static auto& all = *new Streams;  // outlives static objects that own streams
  return all;
}

// Runs the oldest command on the stream's device.
void run_one(CUstream_st& stream) {
  const Command command = std::move(stream.queue.front());
  stream.queue.pop_front();
  const int before = current_device();
  const auto use = [](int device) {
    if (device != current_device()) static_cast<void>(cudaSetDevice(device));
  };
  use(stream.device);
  try {
    command.run();
  } catch (...) {
    stream.queue.clear();  // as on a GPU, nothing comes after an error
    use(before);
    throw;
  }
  use(before);
}

}  // namespace

void set_async(bool value) {
  const std::lock_guard lock(one_at_a_time());
  if (!value) finish_all();
  async = value;
}

std::recursive_mutex& one_at_a_time() {
  static auto& mutex = *new std::recursive_mutex;
  return mutex;
}

CUstream_st* find_stream(cudaStream_t stream) {
  if (!stream) {
    auto [it, is_new] = streams().legacy.try_emplace(current_device());
    it->second.legacy = true;
    it->second.device = current_device();
    return &it->second;
  }
  const auto found = streams().made.find(stream);
  return found == streams().made.end() ? nullptr : found->second.get();
}

When when(const CUstream_st& stream) { return stream.capture ? When::captured : async ? When::later : When::now; }

cudaError_t submit(cudaStream_t handle, std::function<void()> command) {
  CUstream_st* const stream = find_stream(handle);
  if (!stream || stream->device != current_device()) return remember(cudaErrorInvalidResourceHandle);
  if (stream->capture) {
    if (!stream->capture->valid) return remember(cudaErrorStreamCaptureInvalidated);
    stream->capture->commands.push_back({std::move(command)});
    return cudaSuccess;
  }
  if (stream->legacy) {
    cudaError_t status = cudaSuccess;
    streams().each([&](CUstream_st& other) {
      if (other.blocking && other.device == stream->device && invalidate(other) != cudaSuccess) status = cudaErrorStreamCaptureImplicit;
    });
    if (status != cudaSuccess) return remember(status);
  }
  if (!async) {
    command();
    return cudaSuccess;
  }
  if (stream->legacy)
    finish_blocking();
  else if (stream->blocking)
    finish(*find_stream(nullptr));
  stream->queue.push_back({std::move(command)});
  return cudaSuccess;
}

void finish(CUstream_st& stream) {
  while (!stream.queue.empty()) run_one(stream);
}
void finish_all() {
  streams().each([](CUstream_st& stream) { finish(stream); });
}
void finish_blocking() {
  streams().each([](CUstream_st& stream) {
    if (stream.blocking && stream.device == current_device()) finish(stream);
  });
}

cudaError_t invalidate(CUstream_st& stream) {
  if (!stream.capture) return cudaSuccess;
  stream.capture->valid = false;
  return cudaErrorStreamCaptureUnsupported;
}

cudaError_t refuse_in_capture() {
  cudaError_t status = cudaSuccess;
  streams().each([&](CUstream_st& stream) {
    if (!stream.capture) return;
    const cudaStreamCaptureMode mode = stream.capture->mode;
    const bool mine = stream.capture->thread == std::this_thread::get_id();
    if (mode == cudaStreamCaptureModeGlobal || (mode == cudaStreamCaptureModeThreadLocal && mine)) status = invalidate(stream);
  });
  return remember(status);
}

}  // namespace cuda_emulator

using namespace cuda_emulator;

namespace {

struct Moment {
  bool reached = false;
  std::chrono::steady_clock::time_point time{};
};

}  // namespace

struct CUevent_st {
  unsigned flags = 0;
  bool captured = false;
  cudaStream_t stream = nullptr;
  std::shared_ptr<Moment> moment{};  // null: never recorded
};

namespace {

// Goes on with the event's stream until the event is reached, or at most one command further.
void advance(const CUevent_st& event, bool all) {
  CUstream_st* const stream = find_stream(event.stream);
  do {
    if (event.moment->reached || !stream || stream->queue.empty()) return;
    run_one(*stream);
  } while (all);
}

}  // namespace

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  const std::lock_guard lock(one_at_a_time());
  if (const cudaError_t status = device_status(); status != cudaSuccess) return status;
  if (flags > cudaStreamNonBlocking) return remember(cudaErrorInvalidValue);
  auto made = std::make_unique<CUstream_st>();
  made->device = current_device();
  made->blocking = flags == cudaStreamDefault;
  *stream = made.get();
  streams().made[*stream] = std::move(made);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  const std::lock_guard lock(one_at_a_time());
  CUstream_st* const stream = handle ? find_stream(handle) : nullptr;
  if (!stream) return remember(cudaErrorInvalidResourceHandle);
  finish(*stream);
  streams().made.erase(handle);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  const std::lock_guard lock(one_at_a_time());
  CUstream_st* const stream = find_stream(handle);
  if (!stream) return remember(cudaErrorInvalidResourceHandle);
  if (const cudaError_t status = invalidate(*stream); status != cudaSuccess) return remember(status);
  if (stream->legacy) finish_blocking();
  finish(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t handle) {
  const std::lock_guard lock(one_at_a_time());
  CUstream_st* const stream = find_stream(handle);
  if (!stream) return remember(cudaErrorInvalidResourceHandle);
  if (const cudaError_t status = invalidate(*stream); status != cudaSuccess) return remember(status);
  if (stream->queue.empty()) return cudaSuccess;
  run_one(*stream);  // whoever asks again and again gets to the end
  return cudaErrorNotReady;
}
cudaError_t cudaDeviceSynchronize() {
  const std::lock_guard lock(one_at_a_time());
  if (const cudaError_t status = device_status(); status != cudaSuccess) return status;
  if (const cudaError_t status = refuse_in_capture(); status != cudaSuccess) return status;
  finish_all();
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
  const std::lock_guard lock(one_at_a_time());
  CUstream_st* const stream = find_stream(handle);
  if (!stream || !event) return remember(cudaErrorInvalidResourceHandle);
  if (event->captured && event->stream != handle) violation("cudaStreamWaitEvent: a second stream in a capture, which is not emulated");
  if (event->captured || !event->moment) return cudaSuccess;
  if (stream->capture) return invalidate(*stream), remember(cudaErrorStreamCaptureIsolation);
  advance(*event, true);
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  const std::lock_guard lock(one_at_a_time());
  if (!function) return remember(cudaErrorInvalidValue);
  return submit(stream, [=] { function(data); });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  const std::lock_guard lock(one_at_a_time());
  if (const cudaError_t status = device_status(); status != cudaSuccess) return status;
  if (flags > (cudaEventBlockingSync | cudaEventDisableTiming)) return remember(cudaErrorInvalidValue);
  *event = new CUevent_st;
  (*event)->flags = flags;
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const std::lock_guard lock(one_at_a_time());
  if (!event) return remember(cudaErrorInvalidResourceHandle);
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
  const std::lock_guard lock(one_at_a_time());
  const CUstream_st* const stream = find_stream(handle);
  if (!event || !stream) return remember(cudaErrorInvalidResourceHandle);
  event->stream = handle;
  event->captured = stream->capture != nullptr;
  if (event->captured) return stream->capture->valid ? cudaSuccess : remember(cudaErrorStreamCaptureInvalidated);
  event->moment = std::make_shared<Moment>();
  return submit(handle, [moment = event->moment] { *moment = {true, std::chrono::steady_clock::now()}; });
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const std::lock_guard lock(one_at_a_time());
  if (!event) return remember(cudaErrorInvalidResourceHandle);
  if (event->captured) return remember(cudaErrorCapturedEvent);
  if (const cudaError_t status = refuse_in_capture(); status != cudaSuccess) return status;
  if (!event->moment || event->moment->reached) return cudaSuccess;
  advance(*event, false);
  return cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const std::lock_guard lock(one_at_a_time());
  if (!event) return remember(cudaErrorInvalidResourceHandle);
  if (event->captured) return remember(cudaErrorCapturedEvent);
  if (const cudaError_t status = refuse_in_capture(); status != cudaSuccess) return status;
  if (event->moment) advance(*event, true);
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  const std::lock_guard lock(one_at_a_time());
  for (const cudaEvent_t event : {start, end})
    if (!event || !event->moment || (event->flags & cudaEventDisableTiming) != 0) return remember(cudaErrorInvalidResourceHandle);
  if (!start->moment->reached || !end->moment->reached) return cudaErrorNotReady;
  *milliseconds = std::chrono::duration<float, std::milli>(end->moment->time - start->moment->time).count();
  return cudaSuccess;
}
