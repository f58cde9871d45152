#include <lamina/io/idx.h>

#include <lamina/core/error.h>
#include <lamina/core/memory.h>

#include "support/catch.h"
#include "support/files.h"

using namespace lamina;
using support::big_endian;
using support::gzip;
using support::idx_images;
using support::idx_labels;
using support::put;
using support::TempDir;

namespace {

using Reader = Tensor (*)(const std::filesystem::path&);

// Whatever is refused must be refused zipped and plain, as an InputError of one line that names the file.
std::string error_of(Reader read, const std::string& bytes, bool zipped = false) {
  static const TempDir dir;  // one for all: some tests have hundreds of cases
  const auto path = put(dir / "bad-idx", zipped ? gzip(bytes) : bytes);
  try {
    read(path);
  } catch (const InputError& e) {
    const std::string message = e.what();
    CHECK_THAT(message, contains(path.string() + ": "));
    CHECK(message.find('\n') == std::string::npos);
    return message;
  }
  return "no error";
}

}  // namespace

TEST_CASE("IDX images and labels are read plain and gzipped") {
  const TempDir dir;
  for (const bool zipped : {false, true}) {
    const auto write = [&](const std::string& bytes) { return put(dir / "a", zipped ? gzip(bytes) : bytes); };
    const Tensor images = io::read_idx_images(write(idx_images(10, 5, 3)));
    CHECK(images.dtype() == DType::u8);
    CHECK(images.shape() == Shape{10, 5, 3});
    const auto pixels = images.to_vector<uint8_t>();
    CHECK(pixels[0] == 0);
    CHECK(pixels[149] == 149);
    const Tensor labels = io::read_idx_labels(write(idx_labels(23)));
    CHECK(labels.shape() == Shape{23});
    CHECK(labels.to_vector<uint8_t>()[22] == 2);
  }
  // 60000 big-endian is 00 00 EA 60; read the other way round it would be 1625948160.
  CHECK(io::read_idx_labels(put(dir / "a", idx_labels(60000))).numel() == 60000);
}

TEST_CASE("F04: another magic number is refused with both numbers") {
  for (const bool zipped : {false, true}) {
    const auto images_error = [&](const std::string& bytes) { return error_of(io::read_idx_images, bytes, zipped); };
    CHECK_THAT(images_error(idx_labels(10)), contains("magic number: expected 2051 (images), got 2049 (labels)"));
    CHECK_THAT(error_of(io::read_idx_labels, idx_images(10), zipped), contains("magic number: expected 2049 (labels), got 2051 (images)"));
    const std::string body = idx_images(2).substr(4);
    CHECK_THAT(images_error(std::string("\x03\x08\0\0", 4) + body), contains("expected 2051 (images), got 50855936 (2051 in little-endian order)"));
    CHECK_THAT(images_error(big_endian(0x0D03) + body), contains("expected 2051 (images), got 3331 (elements f32, dimensions 3)"));
    CHECK_THAT(images_error(big_endian(0x0802) + body), contains("expected 2051 (images), got 2050 (elements u8, dimensions 2)"));
    CHECK_THAT(images_error(big_endian(0x89504E47) + body), contains("got 2303741511 (not an IDX file)"));
    CHECK_THAT(images_error(big_endian(0x0A03) + body), contains("got 2563 (not an IDX file)"));
  }
}

TEST_CASE("F01, F04: a gzipped file is known by its content, a doubly gzipped one is refused with its magic number") {
  const TempDir dir;
  CHECK(io::read_idx_images(put(dir / "train-images-idx3-ubyte", gzip(idx_images(3)))).size(0) == 3);
  CHECK_THAT(error_of(io::read_idx_images, gzip(idx_images(3)), true), contains("expected 2051 (images), got 52920"));  // 529205256 + flags
}

TEST_CASE("F05, F06: the header's sizes are compared with what the file holds") {
  const auto header = [](uint32_t a, uint32_t b, uint32_t c) { return big_endian(2051) + big_endian(a) + big_endian(b) + big_endian(c); };
  const std::string body(784, 'x');
  const auto plain = [](const std::string& bytes) { return error_of(io::read_idx_images, bytes); };
  const auto zipped = [](const std::string& bytes) { return error_of(io::read_idx_images, bytes, true); };

  // The product 2^32 would be 0 in 32 bits.
  CHECK_THAT(plain(header(65536, 256, 256) + body), contains("the header says 65536 x 256 x 256 = 4294967296 bytes, but the file holds only 784"));
  CHECK_THAT(plain(header(60000, 28, 28) + body), contains("60000 x 28 x 28 = 47040000 bytes, but the file holds only 784"));
  CHECK_THAT(plain(header(0xFFFFFFFF, 28, 28) + body), contains("4294967295 x 28 x 28 = 3367254359280 bytes"));
  CHECK_THAT(plain(header(0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF) + body), contains("4294967295 x 4294967295 x 4294967295 bytes, but"));
  CHECK_THAT(zipped(header(65536, 256, 256) + body), contains("4294967296 bytes, but the file cannot hold more than"));
  CHECK_THAT(zipped(header(60000, 28, 28) + body), contains("47040000 bytes, but the file cannot hold more than"));
  CHECK_THAT(zipped(header(0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF) + body), contains("cannot hold more than"));
  CHECK_THAT(zipped(header(2, 28, 28) + body), contains("2 x 28 x 28 = 1568 bytes, but the file holds only 784"));

  for (const auto& error_of_bytes : {std::function<std::string(const std::string&)>(plain), std::function<std::string(const std::string&)>(zipped)}) {
    CHECK_THAT(error_of_bytes(idx_images(3) + "x"), contains("3 x 28 x 28 = 2352 bytes, but the file holds more"));
    CHECK_THAT(error_of_bytes(header(1, 0, 28)), contains("dimensions: expected at least 1 each, got 1 x 0 x 28"));
    CHECK_THAT(error_of_bytes(header(0, 28, 28)), contains("dimensions: expected at least 1 each, got 0 x 28 x 28"));
    CHECK_THAT(error_of_bytes(header(1, 28, 28).substr(0, 15)), contains("expected a header of 16 bytes, got only 15"));
    CHECK_THAT(error_of_bytes(std::string("\0\0\x08", 3)), contains("expected a header of 16 bytes, got only 3"));
  }
  const std::string cut = idx_images(3);
  CHECK_THAT(plain(cut.substr(0, cut.size() - 1)), contains("but the file holds only 2351"));
  CHECK_THAT(error_of(io::read_idx_labels, idx_labels(9).substr(0, 16)), contains("the header says 9 bytes, but the file holds only 8"));
  CHECK_THAT(error_of(io::read_idx_images, ""), contains("[gzip]"));
}

TEST_CASE("F06: a header that asks for much costs no memory") {
  const int64_t resident = support::peak_resident_bytes(), allocations = memory_stats().system_allocations;
  const std::string huge = big_endian(2051) + big_endian(0xFFFFFFFF) + big_endian(28) + big_endian(28) + std::string(784, 'x');
  error_of(io::read_idx_images, huge);
  error_of(io::read_idx_images, huge, true);
  CHECK(memory_stats().system_allocations == allocations);
  CHECK(support::peak_resident_bytes() - resident < 4'000'000);
}

TEST_CASE("F01: a gzipped IDX file cut by 4 and 8 bytes, where all pixels are still there, is refused") {
  const TempDir dir;
  const std::string good = gzip(idx_images(10));
  for (size_t cut : {4U, 8U}) {
    const auto path = put(dir / "a.gz", good.substr(0, good.size() - cut));
    CHECK_THROWS_WITH(io::read_idx_images(path), contains(path.string() + ": the gzip data ends too early"));
  }
}
