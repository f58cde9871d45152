#include <lamina/train/metrics.h>

#include <cmath>

#include <lamina/autograd/graph.h>
#include <lamina/ops/loss.h>

#include "train/small_run.h"

using namespace lamina;
using namespace lamina::train;

namespace {
const double nan_value = std::nan("");
}

TEST_CASE("the mean over samples is not the mean of batch means (D10)", "[train][metrics]") {
  WeightedMean mean;
  CHECK(std::isnan(mean.value()));
  mean.add(1.0, 2);  // sample losses 1, 1 and 4 with batch size 2
  mean.add(4.0, 1);
  CHECK(mean.value() == 2.0);
  CHECK(mean.count == 3);
}

TEST_CASE("NaN is never best and counts as no improvement (D12)", "[train][metrics]") {
  Best first;
  CHECK_FALSE(first.update(nan_value, 1));
  CHECK(std::isnan(first.value));
  CHECK(first.waited == 1);
  CHECK(first.update(0.7, 2));
  CHECK(first.waited == 0);
  CHECK(first.update(0.6, 3));
  CHECK(first.value == 0.6);

  Best between;
  CHECK(between.update(0.7, 1));
  CHECK_FALSE(between.update(nan_value, 2));
  CHECK(between.waited == 1);
  CHECK(between.update(0.6, 3));
  CHECK(between.value == 0.6);
  CHECK(between.step == 3);
  CHECK_FALSE(between.update(0.6, 4));  // equal is not better
  CHECK_FALSE(between.update(0.65, 5));
  CHECK(between.waited == 2);
  CHECK(between.step == 3);
}

TEST_CASE("evaluation counts every example, whatever the batches", "[train][metrics]") {
  nn::Sequential model = test::small_model("batch");
  const data::Dataset dataset = test::small_data(101, 4);
  const Classifier classifier(model);
  data::Loader whole(dataset, {.batch_size = 101, .shuffle = false}),
      parts(dataset, {.batch_size = 100, .shuffle = false});  // G01: a last batch of one
  const Evaluation a = evaluate(classifier, whole, test::device()), b = evaluate(classifier, parts, test::device());
  CHECK(a.count == 101);
  CHECK(b.count == 101);
  CHECK(a.error == b.error);
  CHECK(std::abs(a.nll - b.nll) < test::f32_sum);
  CHECK(model.training());

  // By hand: the same through the loss, and the error from the logits.
  model.eval();
  data::Loader again(dataset, {.batch_size = 101, .shuffle = false});
  const auto batch = again.begin();
  const NoGrad guard;
  const Tensor logits = model(test::on_device(batch->images));
  CHECK(std::abs(cross_entropy(logits, test::on_device(batch->labels)).item() - a.nll) < test::f32_sum);
  const auto values = logits.to_vector<float>();
  const auto labels = batch->labels.to_vector<int64_t>();
  int wrong = 0;
  for (size_t i = 0; i < labels.size(); ++i)
    wrong += std::max_element(values.begin() + 3 * static_cast<long>(i), values.begin() + 3 * static_cast<long>(i + 1)) - values.begin() !=
             3 * static_cast<long>(i) + labels[i];
  CHECK(a.error == wrong / 101.0);
  CHECK(wrong > 0);
}

TEST_CASE("a NaN logit makes error and NLL NaN instead of a lucky guess", "[train][metrics]") {
  nn::Sequential model = test::small_model("none", 0);
  model.parameters().back()->set(test::full({3}, nan_value));
  data::Loader batches(test::small_data(10, 4), {.batch_size = 4, .shuffle = false});
  const Evaluation result = evaluate(Classifier(model), batches, test::device());
  CHECK(std::isnan(result.nll));
  CHECK(std::isnan(result.error));
  CHECK(result.count == 10);
}
