#include <lamina/train/task.h>

#include <limits>

#include "core/format.h"

namespace lamina::train {

double Scores::operator[](std::string_view name) const {
  for (const auto& [key, value] : values)
    if (key == name) return value;
  return std::numeric_limits<double>::quiet_NaN();
}

std::string Task::summary(const Scores& scores) const {
  const std::string name = judged_by();
  return name == "error" ? fmt::format("err {:.2f} %", scores[name] * 100) : fmt::format("{} {:.4g}", name, scores[name]);
}

Task::Loss Task::loss_of(const std::vector<Tensor>&) { fail("task", "loss_of: the steps of this task cannot be captured"); }

void Task::took(const Loss&) {}

void Task::load_state(const nn::StateDict& state) {
  if (!state.empty()) fail_input("trainer", "the checkpoint holds the state '{}' of another task", state.front().first);
}

EvaluationMode::EvaluationMode(nn::Module& model) : model_(model), was_training_(model.training()) { model.eval(); }
EvaluationMode::~EvaluationMode() { model_.train(was_training_); }

}  // namespace lamina::train
