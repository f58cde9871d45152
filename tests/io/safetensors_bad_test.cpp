// Damaged and malicious safetensors files.
#include <chrono>

#include <lamina/core/error.h>
#include <lamina/core/memory.h>
#include <lamina/io/safetensors.h>

#include "support/catch.h"
#include "support/files.h"

using namespace lamina;
using support::get;
using support::put;
using support::TempDir;

namespace {

std::string framed(const std::string& header, const std::string& values) {
  std::string bytes;
  for (size_t i = 0; i < 8; ++i) bytes += static_cast<char>(header.size() >> (8 * i) & 0xff);
  return bytes + header + values;
}

std::string error_of_bytes(const std::string& bytes) {
  static const TempDir dir;  // one for all: some tests have hundreds of cases
  const auto path = put(dir / "bad.safetensors", bytes);
  try {
    io::read_safetensors(path);
  } catch (const InputError& e) {
    const std::string message = e.what();
    CHECK_THAT(message, contains("[safetensors] " + path.string() + ": "));
    CHECK(message.find('\n') == std::string::npos);
    return message;
  }
  return "no error";
}

// A header given as JSON before `count` bytes of values.
std::string error_of(const std::string& header, size_t count = 8) { return error_of_bytes(framed(header, std::string(count, '\0'))); }

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

}  // namespace

TEST_CASE("safetensors: a good header passes, so that the errors below have the cause they claim") {
  CHECK(error_of(R"({"w":)" + entry(R"("F32")", "[2]", "[0,8]") + "}") == "no error");
  CHECK(error_of(R"({"__metadata__":{"a":"b"},"w":)" + entry(R"("F32")", "[2]", "[0,8]") + "}  ") == "no error");
}

TEST_CASE("safetensors: header length") {
  CHECK_THAT(error_of_bytes(""), contains("expected at least 8 bytes, got 0"));
  CHECK_THAT(error_of_bytes("1234567"), contains("expected at least 8 bytes, got 7"));
  CHECK_THAT(error_of_bytes(std::string(8, '\xff')), contains("header length: expected at most 0, got 18446744073709551615"));
  CHECK_THAT(error_of_bytes(std::string("\x03\0\0\0\0\0\0\0{}", 10)), contains("header length: expected at most 2, got 3"));
  CHECK_THAT(error_of_bytes(std::string(16, '\0')), contains("does not begin with '{'"));
}

TEST_CASE("safetensors: a header of very many tensors takes time in proportion", "[slow]") {
  std::string header = "{";
  for (int i = 0; i < 100'000; ++i) header += "\"t" + std::to_string(i) + "\":" + entry(R"("F32")", "[0]", "[0,0]") + ",";
  const auto start = std::chrono::steady_clock::now();
  CHECK(error_of(header + R"("w":)" + entry(R"("F32")", "[2]", "[0,8]") + "}") == "no error");
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(60));  // about 1 s; one look at all others for each would be 10 minutes
}

TEST_CASE("safetensors: header text") {
  CHECK_THAT(error_of("[]"), contains("does not begin with '{'"));
  CHECK_THAT(error_of("{"), contains("not valid JSON (at byte"));
  CHECK_THAT(error_of(R"({"w":})"), contains("not valid JSON"));
  CHECK_THAT(error_of("{} x"), contains("not valid JSON"));
  CHECK_THAT(error_of("{\"\xff\":1}"), contains("not valid JSON"));
  CHECK_THAT(error_of(R"({"w":1e999})"), contains("not valid JSON"));
  CHECK_THAT(error_of(R"({"w":{"shape":[[[[[]]]]]}})"), contains("nested too deeply"));
  CHECK_THAT(error_of(R"({"w":)" + std::string(1'000'000, '[')), contains("nested too deeply"));
  CHECK_THAT(error_of(R"({"__metadata__":1})"), contains("__metadata__: expected an object of strings"));
  CHECK_THAT(error_of(R"({"__metadata__":{"k":1}})"), contains("__metadata__: 'k': expected a string"));
  const std::string w = R"("w":)" + entry(R"("F32")", "[1]", "[0,4]");
  CHECK_THAT(error_of("{" + w + "," + w + "}"), contains("'w' stands twice"));
  CHECK_THAT(error_of(R"({"w":{"dtype":"F32","dtype":"U8","shape":[8],"data_offsets":[0,8]}})"), contains("'dtype' stands twice"));
}

TEST_CASE("safetensors: tensor entries") {
  const auto with = [](const std::string& value, size_t count = 8) { return error_of(R"({"fc.w":)" + value + "}", count); };
  CHECK_THAT(with("1"), contains("tensor 'fc.w': expected an object of dtype, shape and data_offsets"));
  CHECK_THAT(with(R"({"dtype":"F32","shape":[2]})"), contains("expected an object of dtype, shape and data_offsets"));
  CHECK_THAT(with(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8],"more":1})"), contains("expected an object of dtype"));
  CHECK_THAT(with(entry(R"("F8_E4M3")", "[8]", "[0,8]")), contains("tensor 'fc.w': dtype: expected F32,"));
  CHECK_THAT(with(entry(R"("F8_E4M3")", "[8]", "[0,8]")), contains("got 'F8_E4M3'"));
  CHECK_THAT(with(entry("7", "[8]", "[0,8]")), contains("got number"));
  for (const char* shape : {"2", "[-2]", "[2.0]", "[\"2\"]", "[null]", "[9223372036854775808]", "{}"})
    CHECK_THAT(with(entry(R"("F32")", shape, "[0,8]")), contains("shape: expected an array of sizes"));
  CHECK_THAT(with(entry(R"("F32")", "[1,1,1,1,1,1,2]", "[0,8]")), contains("expected at most 6 dimensions, got 7"));
  for (const char* offsets : {"8", "[8]", "[0,4,8]", "[0,-8]", "[0,8.0]", "[0,\"8\"]"})
    CHECK_THAT(with(entry(R"("F32")", "[2]", offsets)), contains("data_offsets: expected two offsets"));
  CHECK_THAT(with(entry(R"("F32")", "[2]", "[8,0]")), contains("expected a range within the 8 bytes of values, got [8, 0]"));
  CHECK_THAT(with(entry(R"("F32")", "[4]", "[0,16]")), contains("expected a range within the 8 bytes of values, got [0, 16]"));
  CHECK_THAT(with(entry(R"("F32")", "[3]", "[0,8]")), contains("F32 [3] takes 12 bytes, but data_offsets give 8"));
  CHECK_THAT(with(entry(R"("F64")", "[2]", "[0,8]")), contains("F64 [2] takes 16 bytes, but data_offsets give 8"));
}

TEST_CASE("F06: tensor shapes whose products overflow, or that ask for much, cost no memory") {
  const auto with = [](const std::string& shape, const std::string& offsets = "[0,0]", size_t count = 0) {
    return error_of(R"({"w":)" + entry(R"("F32")", shape, offsets) + "}", count);
  };
  const int64_t resident = support::peak_resident_bytes(), allocations = memory_stats().system_allocations;
  CHECK_THAT(with("[65536,65536,65536,65536]"), contains("takes too many bytes"));        // 2^64: 0 in 64 bits
  CHECK_THAT(with("[4611686018427387904,4]"), contains("takes too many bytes"));          // 2^64 elements
  CHECK_THAT(with("[4611686018427387904]"), contains("takes too many bytes"));            // 2^64 bytes
  CHECK_THAT(with("[0,9223372036854775807,9223372036854775807]"), contains("too many"));  // empty, but no shape of ours
  CHECK_THAT(with("[65536,256,256]", "[0,8]", 8), contains("takes 17179869184 bytes, but data_offsets give 8"));
  CHECK(memory_stats().system_allocations == allocations);
  CHECK(support::peak_resident_bytes() - resident < 4'000'000);
}

TEST_CASE("safetensors: gaps, overlaps, and bytes left over") {
  const auto two = [](const std::string& first, const std::string& second, size_t count) {
    return error_of(R"({"a":)" + entry(R"("F32")", "[1]", first) + R"(,"b":)" + entry(R"("F32")", "[1]", second) + "}", count);
  };
  CHECK(two("[0,4]", "[4,8]", 8) == "no error");
  CHECK(two("[4,8]", "[0,4]", 8) == "no error");
  CHECK_THAT(two("[0,4]", "[0,4]", 4), contains("expected to begin at 4, got 0 (two tensors overlap)"));
  CHECK_THAT(two("[0,4]", "[2,6]", 8), contains("tensor 'b': data_offsets: expected to begin at 4, got 2 (two tensors overlap)"));
  CHECK_THAT(two("[0,4]", "[5,9]", 9), contains("tensor 'b': data_offsets: expected to begin at 4, got 5 (there is a gap)"));
  CHECK_THAT(two("[1,5]", "[5,9]", 9), contains("tensor 'a': data_offsets: expected to begin at 0, got 1"));
  CHECK_THAT(two("[0,4]", "[4,8]", 9), contains("the tensors end at byte 8 of the values, but the file has 9"));
  CHECK_THAT(error_of("{}", 1), contains("the tensors end at byte 0 of the values, but the file has 1"));
}

TEST_CASE("safetensors: a name in an error stays in one line of reasonable length") {
  const std::string message = error_of(R"({"a\nb\u0000\u001b[2J)" + std::string(5000, 'x') + R"(":1})");
  CHECK_THAT(message, contains("tensor 'a?b??[2Jxxx"));
  CHECK(message.size() < 400);
}

TEST_CASE("F11: truncated by any number of bytes, extended, or with any byte changed, a file with a checksum is refused") {
  const TempDir dir;
  io::Safetensors content;
  content.tensors.emplace_back("fc1.weight", Tensor::from<float>({1, 2, 3, 4, 5, 6}, {2, 3}));
  content.tensors.emplace_back("step", Tensor::scalar(1200, DType::i64));
  content.metadata = {{"epoch", "12"}};
  io::write_safetensors(dir / "good", content);
  const std::string good = get(dir / "good");
  REQUIRE(good.size() < 1000);
  CHECK(error_of_bytes(good) == "no error");
  for (size_t size = 0; size < good.size(); ++size) CHECK(error_of_bytes(good.substr(0, size)) != "no error");
  CHECK_THAT(error_of_bytes(good + "x"), contains("but the file has 33 there"));
  // The name of the checksum's own entry is the one place where a change cannot be noticed: the file then has no checksum. Its values are whole.
  const size_t key = good.find("lamina.crc32");
  REQUIRE(key != std::string::npos);
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 1);
    if (i < key || i >= key + 12) CHECK(error_of_bytes(bad) != "no error");
  }
  std::string bad = good;
  bad[good.size() - 10] = static_cast<char>(bad[good.size() - 10] ^ 0x40);
  CHECK_THAT(error_of_bytes(bad), contains("(the file is damaged)"));
  const size_t epoch = good.find("\"12\"");
  bad = good;
  bad[epoch + 2] = '3';  // a step counter in the header counts as much as a weight
  CHECK_THAT(error_of_bytes(bad), contains("checksum: expected"));
}

TEST_CASE("F01, F14: files that are no safetensors at all") {
  const TempDir dir;
  CHECK_THROWS_WITH(io::read_safetensors(dir / "none"), contains("none: cannot read: No such file or directory"));
  CHECK_THROWS_WITH(io::read_safetensors(dir.path()), contains("cannot read: Is a directory"));
  CHECK_THROWS_AS(io::read_safetensors("/dev/full"), InputError);
  CHECK_THAT(error_of_bytes("PK\x03\x04 this is a zip file"), contains("header length"));
}
