// Capture of streams, and graphs: lists of commands, whose arguments were frozen at capture and whose memory is read at replay.

#include <memory>
#include <utility>

#include "cuda_emulator/report.h"
#include "cuda_emulator/streams.h"

using namespace cuda_emulator;

using Commands = std::shared_ptr<const std::vector<Command>>;
struct CUgraph_st {
  Commands commands;
};
struct CUgraphExec_st {
  Commands commands;
};

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  const std::lock_guard lock(one_at_a_time());
  CUstream_st* const stream = find_stream(handle);
  if (!stream) return remember(cudaErrorInvalidResourceHandle);
  if (stream->legacy) return remember(cudaErrorStreamCaptureUnsupported);
  if (stream->capture) return remember(cudaErrorIllegalState);
  stream->capture = std::make_unique<Capture>();
  stream->capture->mode = mode;
  stream->capture->thread = std::this_thread::get_id();
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  const std::lock_guard lock(one_at_a_time());
  CUstream_st* const stream = find_stream(handle);
  if (!stream) return remember(cudaErrorInvalidResourceHandle);
  *graph = nullptr;
  if (!stream->capture) return remember(cudaErrorIllegalState);
  if (stream->capture->mode != cudaStreamCaptureModeRelaxed && stream->capture->thread != std::this_thread::get_id())
    return remember(cudaErrorStreamCaptureWrongThread);
  const std::unique_ptr<Capture> capture = std::move(stream->capture);
  if (!capture->valid) return remember(cudaErrorStreamCaptureInvalidated);
  *graph = new CUgraph_st{std::make_shared<const std::vector<Command>>(std::move(capture->commands))};
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  const std::lock_guard lock(one_at_a_time());
  const CUstream_st* const stream = find_stream(handle);
  if (!stream) return remember(cudaErrorInvalidResourceHandle);
  *status = !stream->capture         ? cudaStreamCaptureStatusNone
            : stream->capture->valid ? cudaStreamCaptureStatusActive
                                     : cudaStreamCaptureStatusInvalidated;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  const std::lock_guard lock(one_at_a_time());
  if (!exec || !graph) return remember(cudaErrorInvalidValue);
  *exec = new CUgraphExec_st{graph->commands};
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t handle) {
  const std::lock_guard lock(one_at_a_time());
  CUstream_st* const stream = find_stream(handle);
  if (!exec) return remember(cudaErrorInvalidValue);
  if (!stream) return remember(cudaErrorInvalidResourceHandle);
  if (const cudaError_t status = invalidate(*stream); status != cudaSuccess) return remember(status);
  return submit(handle, [commands = exec->commands] {
    for (const Command& command : *commands) command.run();
  });
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  const std::lock_guard lock(one_at_a_time());
  if (!graph || !count) return remember(cudaErrorInvalidValue);
  if (nodes) return remember(cudaErrorNotSupported);
  *count = graph->commands->size();
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  const std::lock_guard lock(one_at_a_time());
  if (!exec) return remember(cudaErrorInvalidValue);
  delete exec;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  const std::lock_guard lock(one_at_a_time());
  if (!graph) return remember(cudaErrorInvalidValue);
  delete graph;
  return cudaSuccess;
}
