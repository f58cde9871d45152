#include <lamina/train/metrics.h>

#include <cmath>

#include <lamina/ops/loss.h>
#include <lamina/ops/reduce.h>
#include <lamina/train/task.h>

namespace lamina::train {

bool Best::update(double candidate, int64_t at_step) {
  const bool better = !std::isnan(candidate) && !(value <= candidate);  // a NaN in `value` means nothing yet
  if (!better) {
    ++waited;
    return false;
  }
  *this = {candidate, at_step, 0};
  return true;
}

Evaluation evaluate(const Classifier& model, data::Loader& batches, Device device) {
  const EvaluationMode mode(*model.module);
  ClassScores result;
  for (const auto& [images, labels] : batches) result.add(model.forward(images.to(device)), labels.to(device));
  return result.value();
}

void ClassScores::add(const Tensor& logits, const Tensor& labels) {
  const auto each = cross_entropy(logits, labels, {.reduction = Reduction::none}).cast(DType::f64).to_vector<double>();
  const auto predicted = argmax(logits).to_vector<int64_t>(), truth = labels.to_vector<int64_t>();
  for (size_t i = 0; i < predicted.size(); ++i) {
    if (truth[i] == CrossEntropyOptions{}.ignore_index) continue;
    nll_ += each[i];
    nan_ = nan_ || std::isnan(each[i]);
    wrong_ += predicted[i] != truth[i];
    ++count_;
  }
}

Evaluation ClassScores::value() const {
  const auto count = static_cast<double>(count_);
  return {nll_ / count, nan_ ? std::numeric_limits<double>::quiet_NaN() : static_cast<double>(wrong_) / count, count_};
}

}  // namespace lamina::train
