#include <lamina/train/metrics.h>

#include <cmath>

#include <lamina/autograd/graph.h>
#include <lamina/ops/loss.h>
#include <lamina/ops/reduce.h>

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
  const bool was_training = model.module->training();
  const NoGrad guard;
  model.module->eval();
  Evaluation result;
  double nll = 0;
  int64_t wrong = 0;
  bool nan = false;
  try {
    for (const auto& [images, labels] : batches) {
      const Tensor logits = model.forward(images.to(device));
      const Tensor losses = cross_entropy(logits, labels.to(device), {.reduction = Reduction::none});
      const auto each = losses.cast(DType::f64).to_vector<double>();
      const auto predicted = argmax(logits).to_vector<int64_t>();
      const int64_t* truth = labels.data<int64_t>();
      for (size_t i = 0; i < predicted.size(); ++i) {
        nll += each[i];
        nan = nan || std::isnan(each[i]);
        wrong += predicted[i] != truth[i];
      }
      result.count += labels.size(0);
    }
  } catch (...) {
    model.module->train(was_training);
    throw;
  }
  model.module->train(was_training);
  const auto count = static_cast<double>(result.count);
  result.nll = nll / count;
  result.error = nan ? std::numeric_limits<double>::quiet_NaN() : static_cast<double>(wrong) / count;
  return result;
}

}  // namespace lamina::train
