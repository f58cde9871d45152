#include "train/step_graph.h"

#include <algorithm>
#include <utility>

#include "core/format.h"
#include "core/memory_pool.h"
#include "kernels/kernels.h"

namespace lamina::train {

using kernels::CudaBackend;

namespace {
constexpr int64_t plain_steps = 3;  // before a capture: moments and caches are there, and the last shows what a step needs of memory
}

StepGraph::StepGraph(Task& task, optim::Optimizer& optimizer, double clip_norm) : task_(task), optimizer_(optimizer), clip_norm_(clip_norm) {
  const std::vector<nn::Parameter*> parameters = task.model().parameters();
  device_ = parameters.empty() ? Device::cpu() : parameters[0]->tensor().device();
  if (device_.is_cpu()) fail("trainer", "cuda_graph: expected a model on a GPU, got one on the CPU");
  if (!task.capturable()) fail("trainer", "cuda_graph: this task's steps cannot be captured (they read more than tensors of one shape)");
  for (const auto& [path, buffer] : task.model().named_buffers())
    if (buffer->is_stream()) streams_.push_back(buffer);
}

StepGraph::~StepGraph() {
  if (graph_) {
    kernels::on_cuda(device_);
    CudaBackend::drop_graph(graph_);
  }
  drop_arena();
}

void StepGraph::step() {
  const std::vector<Tensor> inputs = task_.inputs();
  if (!fits(inputs)) {
    if (graph_) return plain(inputs);
    inputs_.clear();
    for (const Tensor& input : inputs) inputs_.push_back(Tensor::empty(input.shape(), input.dtype(), device_));
    seen_ = 0;
  }
  if (!graph_ && seen_ < plain_steps) {
    const std::vector<int64_t> before = positions();
    if (++seen_ == plain_steps)
      rehearse(inputs);
    else
      plain(inputs);
    const std::vector<int64_t> after = positions();
    advances_.clear();
    for (size_t i = 0; i < streams_.size(); ++i) advances_.push_back(static_cast<uint64_t>(after[i] - before[i]));
    return;
  }
  if (!graph_) return capture(inputs);
  load(inputs);
  optimizer_.repeat_step();
  for (size_t i = 0; i < streams_.size(); ++i) {
    Rng rng = streams_[i]->rng();
    rng.counter += advances_[i];
    streams_[i]->set_rng(rng);
  }
  CudaBackend::launch_graph(graph_);
  ++repeated_;
  task_.took(*loss_);
  items_ = loss_->items;
}

void StepGraph::plain(const std::vector<Tensor>& inputs) {
  std::vector<Tensor> there;
  for (const Tensor& input : inputs) there.push_back(input.to(device_));
  optimizer_.zero_grad();
  Task::Loss loss = task_.loss_of(there);
  items_ = loss.items;
  loss.value.backward();
  optimizer_.queue_step({loss.value, loss.items, clip_norm_});
}

/// A plain step, after which there is the memory that another one needs.
void StepGraph::rehearse(const std::vector<Tensor>& inputs) {
  drop_arena();
  lamina::detail::start_rehearsal(device_);
  plain(inputs);
  arena_ = lamina::detail::make_arena(device_);
}

void StepGraph::drop_arena() {
  if (arena_ != 0) lamina::detail::drop_arena(std::exchange(arena_, 0), device_);
}

/// Writes a step down, and runs it.
void StepGraph::capture(const std::vector<Tensor>& inputs) {
  load(inputs);
  optimizer_.zero_grad();
  lamina::detail::open_arena(arena_, device_);
  try {
    CudaBackend::begin_capture();
    std::vector<kernels::RepeatedStep::Stream> streams;
    for (size_t i = 0; i < streams_.size(); ++i)
      streams.push_back({streams_[i]->rng().key, streams_[i]->rng().counter, positions_.data<int64_t>() + i});
    const kernels::RepeatedStep repeated(std::move(streams));
    loss_ = task_.loss_of(inputs_);
    loss_->value.backward();
    optimizer_.queue_step({loss_->value, loss_->items, clip_norm_});
    graph_ = CudaBackend::end_capture();
  } catch (...) {
    CudaBackend::abandon_capture();
    lamina::detail::close_arena(device_);
    throw;
  }
  lamina::detail::close_arena(device_);
  CudaBackend::launch_graph(graph_);
  ++repeated_;
  loss_->value = loss_->value.detach();
  items_ = loss_->items;
}

void StepGraph::load(const std::vector<Tensor>& inputs) {
  optimizer_.send_lr();
  for (size_t i = 0; i < inputs.size(); ++i) inputs_[i].copy_(inputs[i]);
  const auto count = static_cast<int64_t>(streams_.size());
  if (count > 0 && !positions_.defined()) positions_ = Tensor::empty({count}, DType::i64, device_);
  if (count > 0) positions_.copy_(Tensor::from(positions(), {count}));
  kernels::on_cuda(device_);
}

bool StepGraph::fits(const std::vector<Tensor>& inputs) const {
  return std::ranges::equal(inputs, inputs_, [](const Tensor& a, const Tensor& b) { return a.shape() == b.shape() && a.dtype() == b.dtype(); });
}

std::vector<int64_t> StepGraph::positions() const {
  std::vector<int64_t> counters;
  for (const nn::Buffer* stream : streams_) counters.push_back(static_cast<int64_t>(stream->rng().counter));
  return counters;
}

}  // namespace lamina::train
