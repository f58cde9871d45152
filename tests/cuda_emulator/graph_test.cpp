// Capture of streams and graphs: what is recorded, what is frozen and what is read at replay, and what capture forbids.

#include <cublas_v2.h>

#include <thread>

#include "cuda_emulator/test_support.h"

using namespace lamina::test;

namespace {

__global__ void add(dptr<float> x, float value) { x[threadIdx.x] += value; }

class Graph {
 public:
  explicit Graph(cudaGraph_t graph) : graph_(graph) { require_success(cudaGraphInstantiate(&exec_, graph, 0)); }
  ~Graph() {
    cudaGraphExecDestroy(exec_);
    if (graph_) cudaGraphDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  size_t size() const {
    size_t nodes = 0;
    require_success(cudaGraphGetNodes(graph_, nullptr, &nodes));
    return nodes;
  }
  void run() const { require_success(cudaGraphLaunch(exec_, stream())); }

 private:
  cudaGraph_t graph_;
  cudaGraphExec_t exec_ = nullptr;
};

template <class F>
cudaGraph_t captured(F&& f, cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal) {
  require_success(cudaStreamBeginCapture(stream(), mode));
  f();
  cudaGraph_t graph = nullptr;
  require_success(cudaStreamEndCapture(stream(), &graph));
  return graph;
}

cudaStreamCaptureStatus capture_status() {
  cudaStreamCaptureStatus status{};
  require_success(cudaStreamIsCapturing(stream(), &status));
  return status;
}

// What f gives during a capture, and what the capture then ends with.
template <class F>
std::pair<cudaError_t, cudaError_t> in_capture(F&& f, cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal) {
  require_success(cudaStreamBeginCapture(stream(), mode));
  const cudaError_t status = f();
  CHECK(capture_status() == (status == cudaSuccess ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusInvalidated));
  cudaGraph_t graph = nullptr;
  const cudaError_t end = cudaStreamEndCapture(stream(), &graph);
  CHECK((graph != nullptr) == (end == cudaSuccess));
  if (graph) cudaGraphDestroy(graph);
  CHECK(capture_status() == cudaStreamCaptureStatusNone);
  cudaGetLastError();
  return {status, end};
}

}  // namespace

TEST_CASE("emulated graphs: nothing is done at capture, all at each replay, in order") {
  const DeviceArray<float> x(std::vector<float>{1, 2}), y(std::vector<float>{0, 0});
  float value = 10;
  const Graph graph(captured([&] {
    CHECK(capture_status() == cudaStreamCaptureStatusActive);
    start(add, 1, 2, 0, x.data(), value);
    require_success(cudaMemcpyAsync(y.data(), x.data(), 8, cudaMemcpyDeviceToDevice, stream()));
    require_success(cudaMemsetAsync(x.data(), 0, 4, stream()));
  }));
  value = 100;  // arguments are those of the capture
  CHECK(graph.size() == 3);
  CHECK(x.host() == std::vector<float>{1, 2});
  CHECK(y.host() == std::vector<float>{0, 0});
  graph.run();
  CHECK(x.host() == std::vector<float>{0, 12});
  CHECK(y.host() == std::vector<float>{11, 12});
  graph.run();
  CHECK(y.host() == std::vector<float>{10, 22});
}

TEST_CASE("emulated graphs: the graph may go before its instance, and one instance before another") {
  const DeviceArray<float> x(std::vector<float>{1});
  cudaGraph_t graph = captured([&] { start(add, 1, 1, 0, x.data(), 1.0F); });
  cudaGraphExec_t first = nullptr, second = nullptr;
  require_success(cudaGraphInstantiate(&first, graph, 0));
  require_success(cudaGraphInstantiate(&second, graph));
  require_success(cudaGraphDestroy(graph));
  require_success(cudaGraphLaunch(first, stream()));
  require_success(cudaGraphExecDestroy(first));
  require_success(cudaGraphLaunch(second, stream()));
  require_success(cudaGraphExecDestroy(second));
  CHECK(x.host() == std::vector<float>{3});
}

TEST_CASE("emulated graphs: pinned memory is read and written at replay; pageable memory is refused") {
  float* pinned = nullptr;
  require_success(cudaHostAlloc(reinterpret_cast<void**>(&pinned), 8, cudaHostAllocDefault));
  const DeviceArray<float> x(std::vector<float>{0});
  {
    const Graph graph(captured([&] {
      require_success(cudaMemcpyAsync(x.data(), pinned, 4, cudaMemcpyHostToDevice, stream()));
      start(add, 1, 1, 0, x.data(), 1.0F);
      require_success(cudaMemcpyAsync(pinned + 1, x.data(), 4, cudaMemcpyDeviceToHost, stream()));
    }));
    for (const float value : {5.0F, 7.0F}) {
      pinned[0] = value;
      graph.run();
      require_success(cudaStreamSynchronize(stream()));
      CHECK(pinned[1] == value + 1);
    }
    require_success(cudaFreeHost(pinned));
    CHECK_THAT(error_of([&] { graph.run(); }), contains("cudaMemcpyAsync: the host memory was freed before the copy was done"));
  }
  float host = 0;
  const auto refused = std::pair(cudaErrorStreamCaptureUnsupported, cudaErrorStreamCaptureInvalidated);
  CHECK(in_capture([&] { return cudaMemcpyAsync(x.data(), &host, 4, cudaMemcpyHostToDevice, stream()); }) == refused);
  CHECK(in_capture([&] { return cudaMemcpyAsync(&host, x.data(), 4, cudaMemcpyDeviceToHost, stream()); }) == refused);
}

TEST_CASE("emulated graphs: what captures forbid ends them (H04)") {
  const DeviceArray<float> x(std::vector<float>{1});
  const auto refused = std::pair(cudaErrorStreamCaptureUnsupported, cudaErrorStreamCaptureInvalidated);
  const auto allowed = std::pair(cudaSuccess, cudaSuccess);
  void* memory = nullptr;
  float host = 0;
  CHECK(in_capture([] { return cudaStreamSynchronize(stream()); }) == refused);
  CHECK(in_capture([] { return cudaStreamSynchronize(stream()); }, cudaStreamCaptureModeRelaxed) == refused);
  CHECK(in_capture([] { return cudaStreamQuery(stream()); }) == refused);
  CHECK(in_capture([] { return cudaDeviceSynchronize(); }) == refused);
  CHECK(in_capture([&] { return cudaMalloc(&memory, 4); }) == refused);
  CHECK(in_capture([&] { return cudaHostAlloc(&memory, 4, 0); }) == refused);
  CHECK(in_capture([&] { return cudaFree(x.data()); }) == refused);
  CHECK(in_capture([&] { return cudaMemcpy(&host, x.data(), 4, cudaMemcpyDeviceToHost); }) == refused);
  CHECK(in_capture([&] { return cudaMemset(x.data(), 0, 4); }) == refused);
  CHECK(in_capture([&] { return cudaMalloc(&memory, 4); }, cudaStreamCaptureModeThreadLocal) == refused);
  CHECK(in_capture([&] { return cudaMalloc(&memory, 4); }, cudaStreamCaptureModeRelaxed) == allowed);
  require_success(cudaFree(memory));
  // Another thread may do what it likes while this one captures for itself, but not while it captures globally.
  const auto other_thread = [&] {
    cudaError_t status = cudaSuccess;
    std::thread([&] {
      status = cudaMalloc(&memory, 4);
      if (status == cudaSuccess) cudaFree(memory);
    }).join();
    return status;
  };
  CHECK(in_capture(other_thread, cudaStreamCaptureModeThreadLocal) == allowed);
  CHECK(in_capture(other_thread) == refused);
  CHECK(x.host() == std::vector<float>{1});
}

TEST_CASE("emulated graphs: an ended capture refuses further work; allocations for the stream are violations") {
  const DeviceArray<float> x(std::vector<float>{1});
  require_success(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeGlobal));
  CHECK(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeGlobal) == cudaErrorIllegalState);
  void* memory = nullptr;
  CHECK_THAT(error_of([&] { cudaMallocAsync(&memory, 4, stream()); }), contains("cudaMallocAsync in a capture"));
  CHECK_THAT(error_of([&] { cudaFreeAsync(x.data(), stream()); }), contains("cudaFreeAsync in a capture"));
  CHECK(cudaStreamSynchronize(stream()) == cudaErrorStreamCaptureUnsupported);
  CHECK(cudaMemsetAsync(x.data(), 0, 4, stream()) == cudaErrorStreamCaptureInvalidated);
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamEndCapture(stream(), &graph) == cudaErrorStreamCaptureInvalidated);
  CHECK(cudaStreamEndCapture(stream(), &graph) == cudaErrorIllegalState);
  CHECK(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal) == cudaErrorStreamCaptureUnsupported);
  CHECK(cudaGetLastError() == cudaErrorStreamCaptureUnsupported);
  start(add, 1, 1, 0, x.data(), 1.0F);  // the stream is as before
  CHECK(x.host() == std::vector<float>{2});
}

TEST_CASE("emulated graphs: events in a capture") {
  cudaEvent_t event = nullptr;
  require_success(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  require_success(cudaEventRecord(event, stream()));
  CHECK(in_capture([&] { return cudaEventSynchronize(event); }).first == cudaErrorStreamCaptureUnsupported);
  CHECK(in_capture([&] { return cudaStreamWaitEvent(stream(), event); }).first == cudaErrorStreamCaptureIsolation);
  CHECK(in_capture([&] { return cudaEventRecord(event, stream()); }) == std::pair(cudaSuccess, cudaSuccess));
  CHECK(cudaEventQuery(event) == cudaErrorCapturedEvent);
  CHECK(cudaEventSynchronize(event) == cudaErrorCapturedEvent);
  cudaGetLastError();
  require_success(cudaEventDestroy(event));
}

TEST_CASE("emulated graphs: products are captured, and checked at replay") {
  cublasHandle_t handle = nullptr;
  REQUIRE(cublasCreate(&handle) == CUBLAS_STATUS_SUCCESS);
  REQUIRE(cublasSetStream(handle, stream()) == CUBLAS_STATUS_SUCCESS);
  const DeviceArray<float> a(std::vector<float>{3}), c(std::vector<float>{1});
  float alpha = 2;
  const float one = 1;
  const Graph graph(captured([&] {
    REQUIRE(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &alpha, a.data(), 1, a.data(), 1, &one, c.data(), 1) == CUBLAS_STATUS_SUCCESS);
  }));
  alpha = 0;
  CHECK(c.host() == std::vector<float>{1});
  graph.run();
  graph.run();
  CHECK(c.host() == std::vector<float>{37});
  REQUIRE(cublasDestroy(handle) == CUBLAS_STATUS_SUCCESS);
}

TEST_CASE("emulated graphs: replay with memory that was freed is found, however long ago") {
  cudaGraph_t graph = nullptr;
  {
    const DeviceArray<float> x(std::vector<float>{1});
    graph = captured([&] { start(add, 1, 1, 0, x.data(), 1.0F); });
  }
  const Graph replay(graph);
  for (int i = 0; i < 70'000; ++i) {
    void* memory = nullptr;
    require_success(cudaMalloc(&memory, 4));
    require_success(cudaFree(memory));
  }
  CHECK_THAT(error_of([&] { replay.run(); }), contains("[test] block (0, 0, 0), thread (0, 0, 0)") && contains("after it was freed"));
}
