#pragma once
// What streams do with commands: at once, later (CUDA_EMULATOR_ASYNC), or never but into a graph (capture).

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "cuda_emulator/runtime_api.h"

namespace cuda_emulator {

/// While one lives, freed memory is not forgotten: a pointer in a command that waits still finds out that it was freed.
class Hold {
 public:
  Hold();
  Hold(const Hold&) : Hold() {}
  Hold& operator=(const Hold&) = default;
  ~Hold();
};

/// A command, which owns or copies all it needs but device and pinned memory.
struct Command {
  std::function<void()> run;
  Hold hold{};
};

struct Capture {
  cudaStreamCaptureMode mode;
  std::thread::id thread;
  bool valid = true;
  std::vector<Command> commands;
};

/// All of the runtime runs under this lock.
std::recursive_mutex& one_at_a_time();

/// Keeps the error for cudaGetLastError, and returns it.
cudaError_t remember(cudaError_t error);

/// The device of this thread, counted from 0.
int current_device();
cudaError_t device_status();

/// The stream, or the legacy one for null; null when it was destroyed or never was one.
CUstream_st* find_stream(cudaStream_t stream);

/// What a command on this stream must be prepared for.
enum class When { now, later, captured };
When when(const CUstream_st& stream);

/// Does, queues or captures it. cudaErrorStreamCapture... where a capture forbids it.
cudaError_t submit(cudaStream_t stream, std::function<void()> command);

/// Does all that the stream has queued.
void finish(CUstream_st& stream);
/// All streams of all devices; or those that the legacy stream waits for.
void finish_all();
void finish_blocking();

/// Ends the capture of this stream for good, if it has one: cudaErrorStreamCaptureUnsupported, else success.
cudaError_t invalidate(CUstream_st& stream);
/// What CUDA calls unsafe during captures, such as cudaMalloc: success unless a capture of a mode that forbids it is going on, which is invalidated.
cudaError_t refuse_in_capture();

}  // namespace cuda_emulator

struct CUstream_st {
  int device = 0;
  bool blocking = true, legacy = false;  // blocking: ordered with the legacy stream
  std::deque<cuda_emulator::Command> queue{};
  std::unique_ptr<cuda_emulator::Capture> capture{};
};
