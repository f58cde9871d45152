// CIFAR-10's binary files, made here: 3073 bytes for each image.

#include <lamina/data/cifar.h>

#include <array>

#include "support/catch.h"
#include "support/files.h"

using namespace lamina;
using data::Dataset;
using data::Split;
using support::put;
using support::TempDir;

namespace {

constexpr int64_t pixels = 3072;

// Image i of file f has label (i + f) mod 10 and pixel p = (i + 7 f + p) mod 251.
std::string records(int file, int count) {
  std::string bytes;
  for (int i = 0; i < count; ++i) {
    bytes += static_cast<char>((i + file) % 10);
    for (int p = 0; p < pixels; ++p) bytes += static_cast<char>((i + 7 * file + p) % 251);
  }
  return bytes;
}

void put_all(const std::filesystem::path& dir, int count) {
  std::filesystem::create_directories(dir);
  for (int file = 1; file <= 5; ++file) put(dir / ("data_batch_" + std::to_string(file) + ".bin"), records(file, count));
  put(dir / "test_batch.bin", records(6, 3));
}

}  // namespace

TEST_CASE("CIFAR-10: labels and images in the order of the files") {
  const TempDir dir;
  const bool inside = GENERATE(false, true);
  put_all(inside ? dir / "cifar-10-batches-bin" : dir.path(), 4);
  const Dataset full = data::cifar10(dir.path(), Split::train_full);
  REQUIRE(full.images.shape() == Shape{20, 3, 32, 32});
  CHECK(full.images.dtype() == DType::u8);
  CHECK(full.labels.to_vector<int64_t>() == std::vector<int64_t>{1, 2, 3, 4, 2, 3, 4, 5, 3, 4, 5, 6, 4, 5, 6, 7, 5, 6, 7, 8});
  const uint8_t* p = full.images.data<uint8_t>();
  CHECK(p[0] == 7);                                     // file 1, image 0
  CHECK(p[pixels - 1] == (7 + 3071) % 251);             // its last pixel
  CHECK(p[5 * pixels] == 1 + 14);                       // file 2, image 1
  CHECK(p[19 * pixels + 100] == (3 + 35 + 100) % 251);  // file 5, image 3
  const Dataset test = data::cifar10(dir.path(), Split::test);
  CHECK(test.images.shape() == Shape{3, 3, 32, 32});
  CHECK(test.labels.to_vector<int64_t>() == std::vector<int64_t>{6, 7, 8});
  CHECK_NOTHROW(data::check(full));
}

TEST_CASE("CIFAR-10: the first 5,000 training images validate") {
  const TempDir dir;
  put_all(dir.path(), 1002);
  const Dataset train = data::cifar10(dir.path(), Split::train), validation = data::cifar10(dir.path(), Split::validation);
  CHECK(validation.images.shape() == Shape{5000, 3, 32, 32});
  CHECK(train.images.shape() == Shape{10, 3, 32, 32});
  CHECK(train.labels.size(0) == 10);
  // Position 5000 is image 992 of file 5.
  CHECK(train.images.data<uint8_t>()[0] == (992 + 35) % 251);
  CHECK(train.labels.to_vector<int64_t>()[0] == (992 + 5) % 10);
}

TEST_CASE("CIFAR-10: what is wrong with the files is said in one line that names the file") {
  const TempDir dir;
  put_all(dir.path(), 2);
  const auto train = [&] { data::cifar10(dir.path(), Split::train_full); };
  SECTION("missing file") {
    std::filesystem::remove(dir / "data_batch_3.bin");
    CHECK_THROWS_WITH(train(), contains("[cifar10] ") && contains("found no data_batch_3.bin"));
  }
  SECTION("missing folder") { CHECK_THROWS_WITH(data::cifar10(dir / "no", Split::test), contains("no such directory")); }
  SECTION("cut short") {
    put(dir / "data_batch_2.bin", records(2, 2).substr(0, 5000));
    CHECK_THROWS_WITH(train(), contains("data_batch_2.bin: expected records of 3073 bytes") && contains("got 5000 bytes"));
  }
  SECTION("empty") {
    put(dir / "data_batch_5.bin", "");
    CHECK_THROWS_WITH(train(), contains("data_batch_5.bin") && contains("got 0 bytes"));
  }
  SECTION("a label that is none") {
    std::string bytes = records(4, 2);
    bytes[3073] = 10;
    put(dir / "data_batch_4.bin", bytes);
    CHECK_THROWS_WITH(train(), contains("data_batch_4.bin: label 10 at position 1, expected 0 to 9"));
  }
  SECTION("CIFAR-100, whose records have two labels") {
    put(dir / "data_batch_1.bin", records(1, 2) + "\x01\x02");
    CHECK_THROWS_AS(train(), InputError);
  }
  SECTION("too few to validate on") {
    CHECK_THROWS_WITH(data::cifar10(dir.path(), Split::validation), contains("expected more than 5000 training images") && contains("got 10"));
  }
}
