#pragma once
// Training steps of one shape as a CUDA graph: written down once, run again with one call. What changes from step to step lies in the device's
// memory: the inputs and the positions of random streams in tensors of their own, learning rate, step count and losses in the optimiser's StepState.
// Private to src/train.

#include <optional>
#include <vector>

#include <lamina/optim/optimizer.h>
#include <lamina/train/task.h>

namespace lamina::train {

class StepGraph {
 public:
  /// The model must be on a GPU and stay as it is. Throws Error for a task whose steps cannot be captured.
  StepGraph(Task& task, optim::Optimizer& optimizer, double clip_norm);
  ~StepGraph();
  StepGraph(const StepGraph&) = delete;
  StepGraph& operator=(const StepGraph&) = delete;

  /// The step of the batch at hand: forward, backward and queue_step(). The first ones of a shape are done as they come; then one is captured, and
  /// the others run it again. Another shape is done as it comes.
  void step();
  /// Items of the batch of the last step.
  int64_t items() const { return items_; }
  /// Steps that ran as a graph.
  int64_t repeated() const { return repeated_; }

 private:
  void plain(const std::vector<Tensor>& inputs);
  void rehearse(const std::vector<Tensor>& inputs);
  void drop_arena();
  void capture(const std::vector<Tensor>& inputs);
  void load(const std::vector<Tensor>& inputs);
  bool fits(const std::vector<Tensor>& inputs) const;
  std::vector<int64_t> positions() const;

  Task& task_;
  optim::Optimizer& optimizer_;
  double clip_norm_;
  Device device_;
  std::vector<nn::Buffer*> streams_;
  int64_t items_ = 0, repeated_ = 0;
  int64_t seen_ = 0;                // plain steps of the shape of inputs_
  std::vector<Tensor> inputs_;      // what a graph reads; of a shape that may come to be captured
  Tensor positions_;                // i64, of the streams, for the graph
  std::vector<uint64_t> advances_;  // of the streams, in a step of that shape
  std::optional<Task::Loss> loss_;  // of the captured step
  int arena_ = 0;
  void* graph_ = nullptr;
};

}  // namespace lamina::train
