#pragma once
// A pass of a model over data that is about statistics, not training. Private to src/nn.

#include <utility>
#include <vector>

#include <lamina/nn/norm.h>

namespace lamina::nn {

/// The module's running statistics, if it is one that may have some.
RunningStatistics* running_statistics(Module* module);

/// Warns of an evaluation that uses, and moves, the statistics of its own batches.
void warn_of_training_mode(const char* op, const Module& module);

/// While it lives: normalisers in training mode and collecting population statistics, all other layers in evaluation mode. Then modes are as before,
/// and the statistics are the new ones only if keep() was called.
class StatisticsPass {
 public:
  explicit StatisticsPass(Module& model);
  ~StatisticsPass();
  StatisticsPass(const StatisticsPass&) = delete;
  StatisticsPass& operator=(const StatisticsPass&) = delete;
  void keep() { keep_ = true; }

 private:
  std::vector<std::pair<Module*, bool>> modes_;
  std::vector<RunningStatistics*> norms_;
  bool keep_ = false;
};

}  // namespace lamina::nn
