// Thousands of damaged files: each loads or throws InputError, and nothing else happens (the sanitizer build watches).
#include <cstring>
#include <functional>

#include <lamina/core/error.h>
#include <lamina/core/random.h>
#include <lamina/io/idx.h>
#include <lamina/io/safetensors.h>

#include "support/catch.h"
#include "support/files.h"

using namespace lamina;
using support::get;
using support::put;
using support::TempDir;

namespace {

char random_byte(Rng& rng) { return static_cast<char>(rng.next_u32() >> 24); }

// Flips, overwrites, removes, repeats or inserts bytes in one to four places.
std::string mutate(std::string bytes, Rng& rng) {
  constexpr std::string_view interesting("\x00\xff\x7f\x80\x01{}[]\",:-019eE. ", 20);
  for (int64_t changes = 1 + rng.below(4); changes > 0 && !bytes.empty(); --changes) {
    const auto at = static_cast<size_t>(rng.below(static_cast<int64_t>(bytes.size())));
    const auto length = static_cast<size_t>(1 + rng.below(8));
    switch (rng.below(6)) {
      case 0: bytes[at] = static_cast<char>(bytes[at] ^ (1 << rng.below(8))); break;
      case 1: bytes[at] = random_byte(rng); break;
      case 2: bytes[at] = interesting[static_cast<size_t>(rng.below(static_cast<int64_t>(interesting.size())))]; break;
      case 3: bytes.erase(at, length); break;
      case 4: bytes.insert(at, bytes.substr(at, length)); break;
      default: bytes.resize(at); break;
    }
  }
  return bytes;
}

struct Outcome {
  int loaded = 0, refused = 0;
};

Outcome fuzz(const std::string& good, int count, uint64_t seed, const std::function<void(const std::filesystem::path&)>& load) {
  const TempDir dir;
  Rng rng(seed);
  Outcome outcome;
  for (int i = 0; i < count; ++i) {
    const auto path = put(dir / "fuzzed", mutate(good, rng));
    try {
      load(path);
      ++outcome.loaded;
    } catch (const InputError& e) {
      if (std::string(e.what()).find('\n') != std::string::npos) FAIL("more than one line: " << e.what());
      ++outcome.refused;
    } catch (const std::exception& e) {
      FAIL("not an InputError: " << e.what());
    }
  }
  return outcome;
}

}  // namespace

TEST_CASE("fuzz: IDX images, plain and gzipped") {
  const auto load = [](const std::filesystem::path& path) { io::read_idx_images(path); };
  const std::string good = support::idx_images(3, 4, 5);
  const Outcome plain = fuzz(good, 3000, 1, load);
  CHECK(plain.refused > 1000);
  CHECK(plain.loaded > 100);  // changed pixels cannot be seen in a plain file
  const Outcome zipped = fuzz(support::gzip(good), 3000, 2, load);
  CHECK(zipped.refused > 2000);
}

TEST_CASE("fuzz: gzip around changed IDX headers") {
  const TempDir dir;
  Rng rng(3);
  const std::string good = support::idx_images(2, 3, 3);
  int refused = 0;
  for (int i = 0; i < 1000; ++i) {
    const auto path = put(dir / "fuzzed.gz", support::gzip(mutate(good.substr(0, 16), rng) + good.substr(16)));
    try {
      io::read_idx_images(path);
    } catch (const InputError&) {
      ++refused;
    }
  }
  CHECK(refused > 500);
}

TEST_CASE("fuzz: safetensors with and without a checksum") {
  const TempDir dir;
  io::Safetensors content;
  content.tensors.emplace_back("weight", Tensor::from<float>({1, 2, 3, 4, 5, 6}, {2, 3}));
  content.tensors.emplace_back("mask", Tensor::from<uint8_t>({1, 0}, {2}));
  content.tensors.emplace_back("none", Tensor::empty({0}));
  content.metadata = {{"epoch", "3"}};
  const auto load = [](const std::filesystem::path& path) { io::read_safetensors(path); };
  for (const bool checksum : {false, true}) {
    io::write_safetensors(dir / "good", content, {.checksum = checksum});
    const Outcome outcome = fuzz(get(dir / "good"), 3000, 4, load);
    CHECK(outcome.refused > 2000);
    CHECK(outcome.loaded > 0);
  }
}

TEST_CASE("fuzz: safetensors whose header alone is changed and its length kept right") {
  const TempDir dir;
  const std::string header =
      R"({"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"I64","shape":[],"data_offsets":[8,16]}})";
  Rng rng(5);
  int refused = 0;
  for (int i = 0; i < 4000; ++i) {
    const std::string changed = mutate(header, rng);
    std::string bytes(8, '\0');
    const uint64_t length = changed.size();
    std::memcpy(bytes.data(), &length, 8);
    try {
      io::read_safetensors(put(dir / "fuzzed", bytes + changed + std::string(16, '\1')));
    } catch (const InputError&) {
      ++refused;
    }
  }
  CHECK(refused > 2000);
}
