#include <lamina/io/safetensors.h>

#include <cmath>
#include <csignal>
#include <cstring>
#include <limits>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include <lamina/core/error.h>
#include <lamina/core/memory.h>

#include "support/catch.h"
#include "support/files.h"

using namespace lamina;
using support::get;
using support::put;
using support::TempDir;

namespace {

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() &&
         (a.nbytes() == 0 || std::memcmp(a.raw_data(), b.raw_data(), static_cast<size_t>(a.nbytes())) == 0);
}

io::Safetensors example() {
  io::Safetensors content;
  content.tensors.emplace_back("bytes", Tensor::from<uint8_t>({1, 2, 255}, {3}));
  content.tensors.emplace_back("fc1.weight",
                               Tensor::from<float>({1.5F, -0.0F, std::numeric_limits<float>::infinity(), std::nanf("7"), 1e-40F, 3}, {2, 3}));
  content.tensors.emplace_back("none", Tensor::empty({0, 4}, DType::f64));
  content.tensors.emplace_back("step", Tensor::scalar(12345678901234, DType::i64));
  content.tensors.emplace_back("a \"quoted\"\nname, \xC3\xA9", Tensor::from<double>({0.1, -1e300}, {2, 1, 1}));
  content.metadata = {{"format", "pt"}, {"lamina.version", "1"}, {"text", "line\n\"two\" \\ \xE2\x82\xAC"}, {"empty", ""}};
  return content;
}

// The format by its definition, independent of the code under test: length, JSON, values.
std::string file_of(const std::string& header, const std::string& values) {
  std::string bytes;
  for (size_t i = 0; i < 8; ++i) bytes += static_cast<char>(header.size() >> (8 * i) & 0xff);
  return bytes + header + values;
}

}  // namespace

TEST_CASE("safetensors: what is written is read back bit for bit, in order, with its metadata") {
  const TempDir dir;
  const auto path = dir / "a.safetensors";
  for (const bool checksum : {true, false}) {
    const io::Safetensors content = example();
    io::write_safetensors(path, content, {.checksum = checksum});
    const io::Safetensors got = io::read_safetensors(path);
    REQUIRE(got.tensors.size() == content.tensors.size());
    for (size_t i = 0; i < got.tensors.size(); ++i) {
      CHECK(got.tensors[i].first == content.tensors[i].first);
      CHECK(same_bits(got.tensors[i].second, content.tensors[i].second));
    }
    CHECK(got.metadata == content.metadata);
    REQUIRE(got.find("step") != nullptr);
    CHECK(got.find("step")->rank() == 0);
    CHECK(got.find("stap") == nullptr);
  }
  CHECK(std::distance(std::filesystem::directory_iterator(dir.path()), std::filesystem::directory_iterator()) == 1);
}

TEST_CASE("safetensors: nothing at all, and parameters that require gradients, can be written") {
  const TempDir dir;
  io::write_safetensors(dir / "a", {});
  const io::Safetensors nothing = io::read_safetensors(dir / "a");
  CHECK(nothing.tensors.empty());
  CHECK(nothing.metadata.empty());

  Tensor weight = Tensor::from<float>({1, 2}, {2});
  weight.set_requires_grad();
  io::write_safetensors(dir / "a", {.tensors = {{"w", weight}}, .metadata = {}});
  const Tensor got = io::read_safetensors(dir / "a").tensors.at(0).second;
  CHECK(got.to_vector<float>() == std::vector<float>{1, 2});
  CHECK_FALSE(got.requires_grad());
}

TEST_CASE("safetensors: the file is what the format says, and aligned for readers that map it") {
  const TempDir dir;
  io::write_safetensors(dir / "a", example());
  const std::string bytes = get(dir / "a");
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  CHECK(length % 8 == 0);
  const std::string header = bytes.substr(8, length);
  CHECK(header.front() == '{');
  const auto json = nlohmann::json::parse(header);
  CHECK(json["__metadata__"]["format"] == "pt");
  CHECK(json["fc1.weight"]["dtype"] == "F32");
  CHECK(json["fc1.weight"]["shape"] == nlohmann::json({2, 3}));
  CHECK(json["step"]["shape"] == nlohmann::json::array());
  CHECK(json["none"]["shape"] == nlohmann::json({0, 4}));
  CHECK(bytes.size() == 8 + length + 3 + 24 + 0 + 8 + 16);
  for (const auto& [name, entry] : json.items()) {
    if (name == "__metadata__") continue;
    const int64_t width = entry["dtype"] == "F32" ? 4 : entry["dtype"] == "U8" ? 1 : 8;
    CHECK(entry["data_offsets"][0].get<int64_t>() % width == 0);
  }
  float first = 0;
  std::memcpy(&first, bytes.data() + 8 + length + json["fc1.weight"]["data_offsets"][0].get<size_t>(), 4);
  CHECK(first == 1.5F);
}

TEST_CASE("safetensors: a file made by hand, with every dtype that is converted") {
  const TempDir dir;
  // half: 1, -2, 65504, 2^-24 (smallest subnormal), inf, NaN; bfloat16: 1, -2, 3.140625
  const std::string halfs("\x00\x3C\x00\xC0\xFF\x7B\x01\x00\x00\x7C\x01\x7E", 12), bfloats("\x80\x3F\x00\xC0\x49\x40", 6);
  const std::string ints("\xFF\xFF\xFF\xFF\x00\x00\x00\x80", 8), bools("\x00\x01", 2);
  const std::string header = R"( {"h":{"dtype":"F16","shape":[6],"data_offsets":[0,12]},"b":{"data_offsets":[12,18],"dtype":"BF16","shape":[3,1]},)"
                             R"("i":{"dtype":"I32","shape":[2],"data_offsets":[18,26]},"t":{"dtype":"BOOL","shape":[2],"data_offsets":[26,28]}}   )";
  const auto got = io::read_safetensors(put(dir / "a", file_of(header.substr(1), halfs + bfloats + ints + bools)));
  const auto h = got.find("h")->to_vector<float>();
  CHECK(std::vector<float>(h.begin(), h.begin() + 4) == std::vector<float>{1, -2, 65504, 0x1p-24F});
  CHECK(std::isinf(h[4]));
  CHECK(std::isnan(h[5]));
  CHECK(got.find("b")->to_vector<float>() == std::vector<float>{1, -2, 3.140625F});
  CHECK(got.find("b")->shape() == Shape{3, 1});
  CHECK(got.find("i")->to_vector<int64_t>() == std::vector<int64_t>{-1, -2147483648});
  CHECK(got.find("t")->to_vector<uint8_t>() == std::vector<uint8_t>{0, 1});
}

TEST_CASE("safetensors: all 65536 halfs have their value") {
  const TempDir dir;
  std::string halfs(131072, '\0');
  for (uint32_t i = 0; i < 65536; ++i) {
    halfs[2 * i] = static_cast<char>(i & 0xff);
    halfs[2 * i + 1] = static_cast<char>(i >> 8);
  }
  const auto got = io::read_safetensors(put(dir / "a", file_of(R"({"h":{"dtype":"F16","shape":[65536],"data_offsets":[0,131072]}})", halfs)))
                       .find("h")
                       ->to_vector<float>();
  int wrong = 0;
  for (uint32_t i = 0; i < 65536; ++i) {
    const int exponent = static_cast<int>(i >> 10 & 31);
    const double mantissa = i & 1023, sign = i < 32768 ? 1 : -1;
    if (exponent == 31) {
      wrong += mantissa == 0 ? got[i] != sign * std::numeric_limits<float>::infinity() : !std::isnan(got[i]);
    } else {
      const double value = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
      wrong += static_cast<double>(got[i]) != sign * value || std::signbit(got[i]) != (sign < 0);
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("safetensors: what cannot be written is an error before anything is touched") {
  const TempDir dir;
  const auto path = put(dir / "a", "old");
  const Tensor x = Tensor::zeros({2});
  CHECK_THROWS_WITH(io::write_safetensors(path, {.tensors = {{"x", x}, {"x", x}}, .metadata = {}}), "[safetensors] tensor name: 'x' is used twice");
  CHECK_THROWS_WITH(io::write_safetensors(path, {.tensors = {{"__metadata__", x}}, .metadata = {}}), contains("'__metadata__' is reserved"));
  CHECK_THROWS_WITH(io::write_safetensors(path, {.tensors = {{"x", Tensor()}}, .metadata = {}}), contains("tensor 'x': expected a defined tensor"));
  CHECK_THROWS_WITH(io::write_safetensors(path, {.tensors = {{"\xff", x}}, .metadata = {}}), contains("expected UTF-8"));
  CHECK_THROWS_WITH(io::write_safetensors(path, {.tensors = {}, .metadata = {{"k", "\xC3"}}}), contains("expected UTF-8"));
  CHECK_THROWS_WITH(io::write_safetensors(path, {.tensors = {}, .metadata = {{"lamina.crc32", ""}}}), contains("is reserved"));
  CHECK_THROWS_WITH(io::write_safetensors(dir / "no/dir", {}), contains("no/dir: cannot write: No such file or directory"));
  CHECK_THROWS_WITH(io::write_safetensors("/dev/full", example()), contains("/dev/full: cannot write: No space left on device"));
  CHECK(get(path) == "old");
}

TEST_CASE("F10: a writer killed at any moment leaves the old file or the new one") {
  const TempDir dir;
  const auto path = dir / "checkpoint.safetensors";
  constexpr int64_t count = 1 << 20;  // 4 MiB
  std::vector<io::Safetensors> versions;
  for (double value : {1.0, 2.0, 3.0}) versions.push_back({.tensors = {{"w", Tensor::full({count}, value)}}, .metadata = {}});
  io::write_safetensors(path, versions[0]);
  for (int round = 0; round < 12; ++round) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      for (size_t i = 0;; ++i) io::write_safetensors(path, versions[i % 3]);
    }
    usleep(static_cast<useconds_t>(2000 + round * 3137));  // unrelated to how long a save takes
    REQUIRE(kill(child, SIGKILL) == 0);
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(WIFSIGNALED(status));  // still writing: it did not end by an error
    const Tensor w = io::read_safetensors(path).tensors.at(0).second;
    const float first = w.data<float>()[0];
    CHECK((first == 1 || first == 2 || first == 3));
  }
  io::write_safetensors(path, versions[1]);
  CHECK(io::read_safetensors(path).tensors.at(0).second.data<float>()[count - 1] == 2);
  CHECK(std::distance(std::filesystem::directory_iterator(dir.path()), std::filesystem::directory_iterator()) == 1);
}
