#include <lamina/data/text.h>

#include <algorithm>
#include <set>

#include "support/catch.h"
#include "support/files.h"

using namespace lamina;
using namespace lamina::data;
using support::put;
using support::TempDir;

namespace {

std::shared_ptr<const std::vector<int32_t>> counting(int32_t count) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < count; ++i) ids.push_back(i);
  return std::make_shared<const std::vector<int32_t>>(std::move(ids));
}

}  // namespace

TEST_CASE("CR LF is read as LF in characters and kept in bytes; a byte order mark is dropped (F07)", "[data][text]") {
  const TempDir dir;
  const std::string path = (dir / "text").string();
  put(path,
      "\xEF\xBB\xBF"
      "a\r\nb\r\n");
  CHECK(read_text(path, TextUnit::character) == "a\nb\n");
  CHECK(Vocabulary::of(read_text(path, TextUnit::character), TextUnit::character).size() == 3);
  CHECK(read_text(path, TextUnit::byte) ==
        "\xEF\xBB\xBF"
        "a\r\nb\r\n");
  put(path, "a\rb\r");  // a lone CR is a character
  CHECK(read_text(path, TextUnit::character) == "a\rb\r");
}

TEST_CASE("bytes from 0x80 on are positive numbers, and an unknown symbol is named (F08)", "[data][text]") {
  const Vocabulary bytes = Vocabulary::of("", TextUnit::byte);
  CHECK(bytes.size() == 256);
  CHECK(bytes.encode("\xC3\xA9", "text") == std::vector<int32_t>{195, 169});
  CHECK(bytes.decode(195) + bytes.decode(169) == "\xC3\xA9");

  const std::string text = "na\xC3\xAFve \xE2\x82\xAC\xF0\x9D\x84\x9E";  // 2, 3 and 4 bytes
  const Vocabulary characters = Vocabulary::of(text, TextUnit::character);
  CHECK(characters.size() == 8);  // space a e n v i-umlaut euro clef
  std::string again;
  for (const int32_t id : characters.encode(text, "text")) again += characters.decode(id);
  CHECK(again == text);
  CHECK(characters.find('z') == -1);
  CHECK(characters.encode("", "--prompt").empty());
  CHECK_THROWS_WITH(characters.encode("na\xC3\xA9", "--prompt"),
                    contains("--prompt: character '\xC3\xA9' (U+00E9) at position 2 is not in the vocabulary"));
  CHECK_THROWS_WITH(characters.encode("\t", "--prompt"), contains("character U+0009 at position 0"));
  CHECK(characters.size() == 8);  // nothing was added
  CHECK_THROWS_WITH(characters.decode(8), contains("expected a symbol from 0 to 7, got 8"));
}

TEST_CASE("what is not UTF-8 is refused with its position; empty files are refused", "[data][text]") {
  // Continuation alone, overlong, surrogate, above U+10FFFF, cut short.
  for (const std::string bad : {"\x80", "\xC0\x80", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xE2\x82", "\xC3("})
    CHECK(invalid_utf8("ab" + bad) == 2);
  CHECK(invalid_utf8("ab\xC3\xA9\xED\x9F\xBF\xF4\x8F\xBF\xBF") == std::string::npos);
  const TempDir dir;
  const std::string path = (dir / "text").string();
  put(path, "ab\xFF");
  CHECK_THROWS_WITH(read_text(path, TextUnit::character), contains("text: byte 2 (0xFF) is not UTF-8; --unit byte reads any file"));
  CHECK(read_text(path, TextUnit::byte).size() == 3);
  put(path, "");
  CHECK_THROWS_WITH(read_text(path, TextUnit::byte), contains("the file is empty"));
  CHECK_THROWS_WITH(read_text((dir / "none").string(), TextUnit::byte), contains("none"));
  CHECK_THROWS_WITH(parse_unit("word"), contains("expected character or byte, got 'word'"));
}

TEST_CASE("a vocabulary reads back from its text, and damage is seen", "[data][text]") {
  const Vocabulary v = Vocabulary::of("hello, \xE2\x82\xAC\n", TextUnit::character);
  CHECK(v.str() == "character 10 32 44 101 104 108 111 8364");
  CHECK(Vocabulary::parse(v.str()).str() == v.str());
  CHECK(Vocabulary::parse("byte").size() == 256);
  for (const char* bad : {"", "byte ", "character", "character ", "character 10 9", "character 10 10", "character 1114112", "character 55296",
                          "character 10x", "character 10  11"})
    CHECK_THROWS_WITH(Vocabulary::parse(bad), contains("damaged vocabulary"));
}

TEST_CASE("a corpus shorter than a batch is refused with what it needs (F09)", "[data][text]") {
  for (const int32_t count : {0, 1, 100, 2500})
    CHECK_THROWS_WITH(
        TextBatches(counting(count), {.batch_size = 50, .steps = 50}),
        contains("expected at least 2501 symbols (a batch of 50 streams of 50 steps, and the last target), got " + std::to_string(count)));
  CHECK_THROWS_WITH(TextBatches(nullptr, {}), contains("text: expected symbols, got a null pointer"));
  CHECK_THROWS_WITH(TextBatches(counting(9), {.batch_size = 0, .steps = 2}), contains("batch size: expected at least 1"));
  CHECK_THROWS_WITH(TextBatches(counting(9), {.batch_size = 2, .steps = 0}), contains("steps: expected at least 1"));
  CHECK_THROWS_WITH(TextBatches(counting(9), {.batch_size = INT64_MAX, .steps = 2}), contains("2^63"));

  const TextBatches exact(counting(2501), {.batch_size = 50, .steps = 50});
  REQUIRE(exact.num_batches() == 1);
  const TextBatch batch = exact.batch(0, 0);
  const auto x = batch.x.to_vector<int64_t>(), y = batch.y.to_vector<int64_t>();
  int64_t right = 0;
  for (int64_t t = 0; t < 50; ++t)
    for (int64_t n = 0; n < 50; ++n)
      right += x[static_cast<size_t>(t * 50 + n)] == n * 50 + t && y[static_cast<size_t>(t * 50 + n)] == n * 50 + t + 1;
  CHECK(right == 2500);
  CHECK(y.back() == 2500);  // the last target is character B T
}

TEST_CASE("streams go on from batch to batch; what is left out moves from epoch to epoch", "[data][text]") {
  const TextBatches batches(counting(100), {.batch_size = 3, .steps = 4, .seed = 7});  // 8 batches of 12, 3 symbols to spare
  REQUIRE(batches.num_batches() == 8);
  std::vector<int64_t> starts;
  for (int64_t epoch = 0; epoch < 12; ++epoch) {
    const int64_t start = batches.batch(epoch, 0).x.to_vector<int64_t>()[0];
    starts.push_back(start);
    std::vector<int> seen(100);
    for (int64_t i = 0; i < 8; ++i) {
      const TextBatch batch = batches.batch(epoch, i);
      const auto x = batch.x.to_vector<int64_t>();
      for (int64_t t = 0; t < 4; ++t)
        for (int64_t n = 0; n < 3; ++n) CHECK(x[static_cast<size_t>(t * 3 + n)] == start + n * 32 + i * 4 + t);
      for (const int64_t id : x) ++seen[static_cast<size_t>(id)];
    }
    CHECK(std::count(seen.begin(), seen.end(), 1) == 96);
  }
  CHECK(std::set<int64_t>(starts.begin(), starts.end()).size() == 4);  // 0, 1, 2, 3
  CHECK_THROWS_WITH(batches.batch(0, 8), contains("batch: expected 0 to 7, got 8"));
}
