#include <lamina/data/dataset.h>

#include <cstdlib>

#include <lamina/core/error.h>

#include "support/catch.h"
#include "support/files.h"

using namespace lamina;
using data::Dataset;
using data::Split;
using support::gzip;
using support::idx_images;
using support::idx_labels;
using support::put;
using support::TempDir;

namespace {

// Images of 2 x 3 pixels, image i of value i.
Dataset small(int64_t count) {
  std::vector<uint8_t> pixels;
  for (int64_t i = 0; i < count * 6; ++i) pixels.push_back(static_cast<uint8_t>(i / 6));
  return {Tensor::from<uint8_t>(pixels, {count, 2, 3}), Tensor::arange(count)};
}

// The four files of MNIST, with so many images and labels.
void put_mnist(const TempDir& dir, uint32_t images, uint32_t labels, const std::string& prefix = "train", bool zipped = true) {
  const std::string ending = zipped ? ".gz" : "";
  const auto packed = [&](const std::string& bytes) { return zipped ? gzip(bytes) : bytes; };
  put(dir / (prefix + "-images-idx3-ubyte" + ending), packed(idx_images(images)));
  put(dir / (prefix + "-labels-idx1-ubyte" + ending), packed(idx_labels(labels)));
}

class Environment {
 public:
  explicit Environment(const std::string& value) {
    if (const char* old = std::getenv("LAMINA_DATA")) old_ = old;
    setenv("LAMINA_DATA", value.c_str(), 1);
  }
  ~Environment() { old_.empty() ? unsetenv("LAMINA_DATA") : setenv("LAMINA_DATA", old_.c_str(), 1); }

 private:
  std::string old_;
};

}  // namespace

TEST_CASE("dataset: slices and limits share memory and keep images beside their labels") {
  const Dataset all = small(10);
  const Dataset part = all.slice(3, 7);
  CHECK(part.size() == 4);
  CHECK(part.images.shape() == Shape{4, 2, 3});
  CHECK(part.images.data<uint8_t>() == all.images.data<uint8_t>() + 18);
  CHECK(part.images.to_vector<uint8_t>()[23] == 6);
  CHECK(part.labels.to_vector<int64_t>() == std::vector<int64_t>{3, 4, 5, 6});
  CHECK(part.slice(1, 2).labels.to_vector<int64_t>() == std::vector<int64_t>{4});
  CHECK(all.limit(2).labels.to_vector<int64_t>() == std::vector<int64_t>{0, 1});
  CHECK(all.limit(1000).size() == 10);
  CHECK_THROWS_WITH(all.limit(0), "[dataset] limit: expected at least 1 example, got 0");
  CHECK_THROWS_WITH(all.limit(-1), contains("got -1"));
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{-1, 3}, {3, 3}, {4, 3}, {0, 11}, {10, 11}})
    CHECK_THROWS_AS(all.slice(begin, end), InputError);
}

TEST_CASE("dataset: check names what does not fit") {
  CHECK_NOTHROW(data::check(small(1)));
  CHECK_NOTHROW(data::check({Tensor::zeros({3}), Tensor::arange(3)}));
  CHECK_THROWS_WITH(data::check({}), contains("undefined"));
  CHECK_THROWS_WITH(data::check({Tensor::zeros({10, 4}), Tensor::arange(9)}), "[dataset] expected as many images as labels, got 10 and 9");
  CHECK_THROWS_WITH(data::check({Tensor::zeros({0, 4}), Tensor::arange(0)}), contains("at least one example, got none"));
  CHECK_THROWS_WITH(data::check({Tensor::arange(3), Tensor::arange(3)}), contains("images: expected u8, f32 or f64 [N, ...], got i64 [3]"));
  CHECK_THROWS_WITH(data::check({Tensor::scalar(1), Tensor::arange(1)}), contains("got f32 []"));
  CHECK_THROWS_WITH(data::check({Tensor::zeros({3, 4}), Tensor::zeros({3})}), contains("labels: expected i64 [N], got f32 [3]"));
  CHECK_THROWS_WITH(data::check({Tensor::zeros({3, 4}), Tensor::zeros({3, 1}, DType::i64)}), contains("got i64 [3, 1]"));
}

TEST_CASE("mnist: plain and gzipped files, splits") {
  for (const bool zipped : {false, true}) {
    const TempDir dir;
    put_mnist(dir, 5003, 5003, "train", zipped);
    put_mnist(dir, 7, 7, "t10k", zipped);
    CHECK(data::mnist(dir.path(), Split::test).size() == 7);
    CHECK(data::mnist(dir.path(), Split::train_full).size() == 5003);
    const Dataset train = data::mnist(dir.path(), Split::train), validation = data::mnist(dir.path(), Split::validation);
    CHECK(validation.size() == 5000);
    CHECK(validation.labels.to_vector<int64_t>()[4999] == 9);
    CHECK(train.labels.to_vector<int64_t>() == std::vector<int64_t>{0, 1, 2});  // examples 5000, 5001, 5002
    CHECK(train.images.shape() == Shape{3, 28, 28});
    CHECK(train.images.data<uint8_t>()[0] == 5000 * 784 % 251);
    CHECK(train.images.dtype() == DType::u8);
    CHECK(train.labels.dtype() == DType::i64);
  }
}

TEST_CASE("mnist: missing directories and files are named") {
  const TempDir dir;
  CHECK_THROWS_WITH(data::mnist(dir / "none", Split::test),
                    "[mnist] " + (dir / "none").string() + ": no such directory (expected the MNIST files there)");
  CHECK_THROWS_WITH(data::mnist(dir.path(), Split::test), contains("found neither t10k-images-idx3-ubyte nor t10k-images-idx3-ubyte.gz there"));
  put(dir / "t10k-images-idx3-ubyte", idx_images(3));
  CHECK_THROWS_WITH(data::mnist(dir.path(), Split::test), contains("found neither t10k-labels-idx1-ubyte"));
  std::filesystem::create_directory(dir / "t10k-labels-idx1-ubyte");
  CHECK_THROWS_WITH(data::mnist(dir.path(), Split::test), contains("t10k-labels-idx1-ubyte: cannot read: Is a directory"));
}

TEST_CASE("F05: different numbers of images and labels are refused with both numbers") {
  const TempDir dir;
  for (const auto& [images, labels] : {std::pair<uint32_t, uint32_t>{10, 9}, {9, 10}})
    for (const char* prefix : {"train", "t10k"}) {
      put_mnist(dir, images, labels, prefix);
      const Split split = prefix[1] == 'r' ? Split::train_full : Split::test;
      CHECK_THROWS_WITH(data::mnist(dir.path(), split), contains("-labels-idx1-ubyte.gz: holds " + std::to_string(labels) + " labels, but ") &&
                                                            contains("-images-idx3-ubyte.gz holds " + std::to_string(images) + " images"));
    }
}

TEST_CASE("F04: swapped image and label files are refused") {
  const TempDir dir;
  put(dir / "t10k-images-idx3-ubyte", idx_labels(3));
  put(dir / "t10k-labels-idx1-ubyte", idx_images(3));
  CHECK_THROWS_WITH(data::mnist(dir.path(), Split::test),
                    contains("t10k-images-idx3-ubyte: magic number: expected 2051 (images), got 2049 (labels)"));
}

TEST_CASE("C08: a label above 9 is refused at loading with its position") {
  const TempDir dir;
  for (const int label : {10, 255}) {
    std::string labels = idx_labels(20);
    labels[8 + 13] = static_cast<char>(label);
    put(dir / "t10k-images-idx3-ubyte", idx_images(20));
    const auto path = put(dir / "t10k-labels-idx1-ubyte", labels);
    CHECK_THROWS_WITH(data::mnist(dir.path(), Split::test),
                      "[mnist] " + path.string() + ": label " + std::to_string(label) + " at position 13, expected 0 to 9");
  }
}

TEST_CASE("mnist: empty sets, other image sizes, and too few training images to split") {
  const TempDir dir;
  put_mnist(dir, 0, 0, "t10k");
  CHECK_THROWS_WITH(data::mnist(dir.path(), Split::test), contains("expected at least 1 each, got 0 x 28 x 28"));
  put(dir / "t10k-images-idx3-ubyte.gz", idx_images(3, 20, 28));
  put(dir / "t10k-labels-idx1-ubyte.gz", idx_labels(3));
  CHECK_THROWS_WITH(data::mnist(dir.path(), Split::test), contains("images: expected 28 x 28, got 20 x 28"));
  put_mnist(dir, 5000, 5000);
  CHECK_THROWS_WITH(data::mnist(dir.path(), Split::train),
                    contains("expected more than 5000 training images, of which the first 5000 validate, got 5000"));
  CHECK_THROWS_AS(data::mnist(dir.path(), Split::validation), InputError);
  CHECK(data::mnist(dir.path(), Split::train_full).size() == 5000);
}

TEST_CASE("dataset_dir: LAMINA_DATA decides where it is set, else the data that comes with lamina") {
  const TempDir dir;
  std::filesystem::create_directory(dir / "mnist");
  {
    const Environment environment(dir.path().string());
    CHECK(data::dataset_dir() == dir / "mnist");
    CHECK_THROWS_WITH(data::dataset_dir("fashion"),
                      "[fashion] found no directory " + (dir / "fashion").string() +
                          " (set LAMINA_DATA to the directory that holds fashion; scripts/fetch_data.sh fashion gets it)");
  }
  const Environment environment("");
  CHECK(data::dataset_dir() == std::filesystem::path(LAMINA_SOURCE_DIR) / "data/mnist");
  CHECK_THROWS_WITH(data::dataset_dir("no-such-set"), contains("data/no-such-set or ") && contains("share/lamina/no-such-set"));
}
