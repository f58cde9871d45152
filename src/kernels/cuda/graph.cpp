// Work of the stream as graphs: written down once, run again with one call.

#include <cuda_runtime.h>

#include "kernels/cuda/backend.h"
#include "kernels/cuda/launch.h"

namespace lamina::kernels {

using cuda::check;
using cuda::Op;
using cuda::stream;

void CudaBackend::begin_capture() {
  // Thread-local: what other threads do meanwhile is none of this stream's.
  check(Op("graph", {}), cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
}

void* CudaBackend::end_capture() {
  const Op op("graph", {});
  cudaGraph_t graph = nullptr;
  check(op, cudaStreamEndCapture(stream(), &graph), "cudaStreamEndCapture");
  cudaGraphExec_t exec = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&exec, graph, 0);
  cudaGraphDestroy(graph);
  check(op, status, "cudaGraphInstantiate");
  return exec;
}

void CudaBackend::abandon_capture() noexcept {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream(), &status) == cudaSuccess && status != cudaStreamCaptureStatusNone) {
    cudaGraph_t graph = nullptr;
    if (cudaStreamEndCapture(stream(), &graph) == cudaSuccess) cudaGraphDestroy(graph);
  }
  cudaGetLastError();  // it was reported before
}

void CudaBackend::launch_graph(void* graph) {
  check(Op("graph", {}), cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), stream()), "cudaGraphLaunch");
}

void CudaBackend::drop_graph(void* graph) noexcept { static_cast<void>(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph))); }

}  // namespace lamina::kernels
