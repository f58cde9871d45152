// The MNIST files that come with lamina.
#include <numeric>

#include <lamina/data/dataset.h>
#include <lamina/data/loader.h>

#include "support/catch.h"

using namespace lamina;
using data::Dataset;
using data::Split;

namespace {

const std::filesystem::path directory = std::filesystem::path(LAMINA_SOURCE_DIR) / "data/mnist";

std::vector<int64_t> class_counts(const Dataset& dataset) {
  std::vector<int64_t> counts(10);
  for (int64_t label : dataset.labels.to_vector<int64_t>()) ++counts.at(static_cast<size_t>(label));
  return counts;
}

int64_t pixel_sum(const Dataset& dataset) {
  const auto* pixels = dataset.images.data<uint8_t>();
  return std::accumulate(pixels, pixels + dataset.images.numel(), int64_t{0});
}

std::vector<int64_t> first_labels(const Dataset& dataset) { return dataset.slice(0, 5).labels.to_vector<int64_t>(); }

}  // namespace

// Expected values: taken from the files with zcat and Python.
TEST_CASE("MNIST: 55,000 training, 5,000 validation and 10,000 test images, each what it should be") {
  const Dataset full = data::mnist(directory, Split::train_full), train = data::mnist(directory, Split::train);
  const Dataset validation = data::mnist(directory, Split::validation), test = data::mnist(directory, Split::test);
  CHECK(full.images.shape() == Shape{60000, 28, 28});
  CHECK(train.images.shape() == Shape{55000, 28, 28});
  CHECK(validation.images.shape() == Shape{5000, 28, 28});
  CHECK(test.images.shape() == Shape{10000, 28, 28});
  for (const Dataset* dataset : {&full, &train, &validation, &test}) CHECK(dataset->labels.shape() == Shape{dataset->images.size(0)});

  CHECK(first_labels(full) == std::vector<int64_t>{5, 0, 4, 1, 9});
  CHECK(first_labels(validation) == std::vector<int64_t>{5, 0, 4, 1, 9});
  CHECK(first_labels(train) == std::vector<int64_t>{7, 3, 4, 6, 1});
  CHECK(first_labels(test) == std::vector<int64_t>{7, 2, 1, 0, 4});

  CHECK(pixel_sum(full) == 1567298545);
  CHECK(pixel_sum(validation) == 130170281);
  CHECK(pixel_sum(train) == 1567298545 - 130170281);
  CHECK(pixel_sum(test) == 264923200);
  CHECK(pixel_sum(train.limit(1)) == 30871);

  CHECK(class_counts(train) == std::vector<int64_t>{5444, 6179, 5470, 5638, 5307, 4987, 5417, 5715, 5389, 5454});
  CHECK(class_counts(validation) == std::vector<int64_t>{479, 563, 488, 493, 535, 434, 501, 550, 462, 495});
  CHECK(class_counts(test) == std::vector<int64_t>{980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009});
}

TEST_CASE("MNIST: an epoch at batch size 128 is 430 batches that hold every image once") {
  const Dataset train = data::mnist(directory, Split::train);
  data::Loader loader(train, {.batch_size = 128, .shuffle_seed = 1});
  CHECK(loader.num_batches() == 430);  // 429 full ones and one of 88
  int64_t count = 0, batches = 0;
  double sum = 0;
  std::vector<int64_t> counts(10);
  for (auto [images, labels] : loader) {
    CHECK(images.shape() == Shape{batches == 429 ? 88 : 128, 784});
    for (float value : images.to_vector<float>()) sum += static_cast<double>(value);
    for (int64_t label : labels.to_vector<int64_t>()) ++counts.at(static_cast<size_t>(label));
    count += labels.size(0);
    ++batches;
  }
  CHECK(batches == 430);
  CHECK(count == 55000);
  CHECK(counts == class_counts(train));
  CHECK(sum * 255 == Approx(1567298545 - 130170281).epsilon(1e-7));  // rounding of 43 million pixels to f32
}
