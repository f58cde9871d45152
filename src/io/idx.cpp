#include <lamina/io/idx.h>

#include <array>
#include <string>
#include <vector>

#include <fmt/ranges.h>

#include <lamina/io/gzip.h>
#include "core/format.h"

namespace lamina::io {
namespace {

constexpr uint32_t magic_of_rank_0 = 0x0800;  // type byte 8: unsigned bytes

uint32_t big_endian(const uint8_t* bytes) {
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | uint32_t{bytes[3]};
}

std::string describe_magic(uint32_t magic) {
  const uint32_t reversed = magic >> 24 | (magic >> 8 & 0xff00) | (magic << 8 & 0xff0000) | magic << 24;
  if (magic == magic_of_rank_0 + 1) return "labels";
  if (magic == magic_of_rank_0 + 3) return "images";
  if (reversed == magic_of_rank_0 + 1 || reversed == magic_of_rank_0 + 3) return fmt::format("{} in little-endian order", reversed);
  if (magic > 0xffff) return "not an IDX file";
  const uint32_t type = magic >> 8;
  constexpr std::array<const char*, 15> names = {nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr,
                                                 "u8",    "i8",    nullptr, "i16",   "i32",   "f32",   "f64"};
  if (type >= names.size() || names[type] == nullptr) return "not an IDX file";
  return fmt::format("elements {}, dimensions {}", names[type], magic & 0xff);
}

// "60000 x 28 x 28 = 47040000 bytes", "10000 bytes".
std::string describe_size(const std::vector<int64_t>& sizes, int64_t count) {
  const std::string product = fmt::format("{}", fmt::join(sizes, " x "));
  return sizes.size() == 1 ? product + " bytes" : fmt::format("{} = {} bytes", product, count);
}

[[noreturn]] void fail_idx(const std::filesystem::path& path, const std::string& what) { fail_input("idx", "{}: {}", path.string(), what); }

// The dimensions after their checks, and the number of elements (which is the number of bytes).
std::vector<int64_t> read_header(GzipReader& reader, const std::filesystem::path& path, int rank, int64_t& count) {
  std::vector<uint8_t> header(4 + 4 * static_cast<size_t>(rank));
  const size_t got = reader.read(header);
  if (got < 4) fail_idx(path, fmt::format("expected a header of {} bytes, got only {}", header.size(), got));
  const uint32_t magic = big_endian(header.data()), expected = magic_of_rank_0 + static_cast<uint32_t>(rank);
  if (magic != expected)
    fail_idx(path, fmt::format("magic number: expected {} ({}), got {} ({})", expected, describe_magic(expected), magic, describe_magic(magic)));
  if (got < header.size()) fail_idx(path, fmt::format("expected a header of {} bytes, got only {}", header.size(), got));

  std::vector<int64_t> sizes;
  count = 1;
  bool overflow = false;
  for (int i = 0; i < rank; ++i) {
    sizes.push_back(big_endian(header.data() + 4 + 4 * i));
    overflow |= __builtin_mul_overflow(count, sizes.back(), &count);
  }
  const std::string product = fmt::format("{}", fmt::join(sizes, " x "));
  for (int64_t size : sizes)
    if (size == 0) fail_idx(path, fmt::format("dimensions: expected at least 1 each, got {}", product));
  const int64_t held = reader.max_size() - (reader.compressed() ? 0 : static_cast<int64_t>(header.size()));
  if (overflow || count > held)
    fail_idx(path, fmt::format("the header says {}, but the file {} {}", overflow ? product + " bytes" : describe_size(sizes, count),
                               reader.compressed() ? "cannot hold more than" : "holds only", held));
  return sizes;
}

Tensor read_idx(const std::filesystem::path& path, int rank) {
  GzipReader reader(path);
  int64_t count = 0;
  const std::vector<int64_t> sizes = read_header(reader, path, rank, count);
  Tensor result = Tensor::empty(Shape(std::span<const int64_t>(sizes)), DType::u8);
  const size_t got = reader.read({result.mutable_data<uint8_t>(), static_cast<size_t>(count)});
  const std::string size = describe_size(sizes, count);
  if (static_cast<int64_t>(got) < count) fail_idx(path, fmt::format("the header says {}, but the file holds only {}", size, got));
  uint8_t extra = 0;
  if (reader.read({&extra, 1}) != 0) fail_idx(path, fmt::format("the header says {}, but the file holds more", size));
  return result;
}

}  // namespace

Tensor read_idx_images(const std::filesystem::path& path) { return read_idx(path, 3); }
Tensor read_idx_labels(const std::filesystem::path& path) { return read_idx(path, 1); }

}  // namespace lamina::io
