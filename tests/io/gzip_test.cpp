#include <lamina/io/gzip.h>

#include <lamina/core/error.h>

#include "support/catch.h"
#include "support/files.h"

using namespace lamina;
using support::gzip;
using support::put;
using support::TempDir;

namespace {

std::string text_of(size_t count) {
  std::string text;
  uint32_t state = 1;
  while (text.size() < count) text += static_cast<char>((state = state * 1664525 + 1013904223) >> 28 | 0x40);  // 4 random bits per byte
  return text;
}

constexpr int64_t plenty = 1 << 24;

}  // namespace

TEST_CASE("read_gzip reads plain and gzipped files alike, whatever their name") {
  const TempDir dir;
  for (size_t count : {1U, 2U, 3U, 1000U, 65535U, 65536U, 65537U, 3000000U}) {
    const std::string text = text_of(count);
    CHECK(io::read_gzip(put(dir / "plain.gz", text), plenty) == text);
    CHECK(io::read_gzip(put(dir / "zipped", gzip(text)), plenty) == text);
  }
  CHECK(io::read_gzip(put(dir / "a", gzip("")), plenty).empty());
  CHECK(io::read_gzip(put(dir / "a", "\x1f"), plenty) == "\x1f");
}

TEST_CASE("several gzip members are read as one") {
  const TempDir dir;
  const std::string a = text_of(70000);
  CHECK(io::read_gzip(put(dir / "a", gzip(a) + gzip("") + gzip("tail")), plenty) == a + "tail");
}

TEST_CASE("GzipReader delivers pieces of any size and says what a file can hold at most") {
  const TempDir dir;
  const std::string text = text_of(100000);
  for (const bool zipped : {false, true}) {
    const std::string bytes = zipped ? gzip(text) : text;
    io::GzipReader reader(put(dir / "a", bytes));
    CHECK(reader.compressed() == zipped);
    CHECK(reader.max_size() == static_cast<int64_t>(bytes.size()) * (zipped ? 1032 : 1));
    std::string got;
    for (size_t step = 1;; step = step * 3 + 1) {
      std::vector<uint8_t> piece(step);
      const size_t n = reader.read(piece);
      got.append(piece.begin(), piece.begin() + static_cast<std::ptrdiff_t>(n));
      if (n < step) break;
    }
    CHECK(got == text);
    uint8_t more = 0;
    CHECK(reader.read({&more, 1}) == 0);
  }
  const std::string zeros = gzip(std::string(10'000'000, '\0'));
  CHECK(static_cast<int64_t>(zeros.size()) * 1032 >= 10'000'000);  // the bound holds for the most compressible input
}

TEST_CASE("F01: every damaged gzip file is refused, naming the file") {
  const TempDir dir;
  const std::string text = text_of(7856), good = gzip(text);
  const size_t size = good.size();
  REQUIRE(size > 200);
  const auto error_of = [&](const std::string& bytes) {
    const auto path = put(dir / "bad.gz", bytes);
    try {
      io::read_gzip(path, plenty);
    } catch (const InputError& e) {
      const std::string message = e.what();
      CHECK_THAT(message, contains("[gzip] " + path.string() + ": "));
      CHECK(message.find('\n') == std::string::npos);
      return message;
    }
    return std::string("no error");
  };
  SECTION("cut off") {
    for (size_t cut : {1U, 4U, 7U, 8U, 9U, 100U}) CHECK_THAT(error_of(good.substr(0, size - cut)), contains("ends too early"));
    CHECK_THAT(error_of(good.substr(0, 10)), contains("ends too early"));  // the header only
    CHECK_THAT(error_of(good.substr(0, 2)), contains("ends too early"));
  }
  SECTION("a byte of the checksum, of the length or of the body changed") {
    std::string bad = good;
    bad[size - 8] = static_cast<char>(bad[size - 8] ^ 1);
    CHECK_THAT(error_of(bad), contains("incorrect data check"));
    bad = good;
    bad[size - 1] = static_cast<char>(bad[size - 1] ^ 1);
    CHECK_THAT(error_of(bad), contains("incorrect length check"));
    bad = good;
    bad[size / 2] = static_cast<char>(bad[size / 2] ^ 0x10);
    CHECK_THAT(error_of(bad), contains("[gzip]"));
  }
  SECTION("empty") { CHECK_THAT(error_of(""), contains("the file is empty")); }
  SECTION("junk behind it") {
    CHECK_THAT(error_of(good + "junk"), contains("bytes that are not gzip follow"));
    CHECK_THAT(error_of(good + std::string(512, '\0')), contains("bytes that are not gzip follow"));
    CHECK_THAT(error_of(good + "\x1f"), contains("ends too early"));
    CHECK_THAT(error_of(good + good.substr(0, size - 1)), contains("ends too early"));
  }
  SECTION("a directory, nothing at all") {
    CHECK_THROWS_WITH(io::read_gzip(dir.path(), plenty), contains("Is a directory"));
    CHECK_THROWS_WITH(io::read_gzip(dir / "none.gz", plenty), contains("none.gz: cannot read: No such file or directory"));
  }
}

TEST_CASE("read_gzip keeps to the limit, also when a small file holds very much") {
  const TempDir dir;
  CHECK(io::read_gzip(put(dir / "a", "1234"), 4) == "1234");
  CHECK_THROWS_WITH(io::read_gzip(put(dir / "a", "12345"), 4), contains("holds more than the expected 4 bytes"));
  CHECK(io::read_gzip(put(dir / "a", gzip("1234")), 4) == "1234");
  CHECK_THROWS_WITH(io::read_gzip(put(dir / "a", gzip("12345")), 4), contains("holds more than the expected 4 bytes"));
  const auto bomb = put(dir / "bomb.gz", gzip(std::string(50'000'000, '\0')));
  CHECK(std::filesystem::file_size(bomb) < 100'000);
  const int64_t before = support::peak_resident_bytes();
  CHECK_THROWS_WITH(io::read_gzip(bomb, 1000), contains("holds more than the expected 1000 bytes"));
  CHECK(support::peak_resident_bytes() - before < 10'000'000);
}
