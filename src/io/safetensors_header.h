#pragma once
// The header of a safetensors file, apart from reading and writing values.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <lamina/core/shape.h>

namespace lamina::io::detail {

/// The official readers refuse longer headers too.
constexpr int64_t max_header_bytes = 100'000'000;

constexpr std::string_view checksum_key = "lamina.crc32";

struct TensorEntry {
  std::string name, dtype;
  Shape shape;
  int64_t begin = 0, end = 0;  // bytes, counted from the end of the header
};

struct SafetensorsHeader {
  std::vector<TensorEntry> entries;
  std::map<std::string, std::string> metadata;
};

/// Bytes per element of a dtype name that lamina reads, 0 for others.
int64_t bytes_of(std::string_view dtype);

/// Checks all that can be checked without the values; `data_bytes` is the size of the file behind the header. Throws InputError naming `path`.
SafetensorsHeader parse_header(const std::filesystem::path& path, std::string_view text, int64_t data_bytes);

/// JSON without the padding. Throws Error for text that is not UTF-8.
std::string print_header(const SafetensorsHeader& header);

/// Where the eight hexadecimal digits of the checksum stand in a header, or npos. The checksum is taken with these digits all 0.
size_t find_checksum(std::string_view header);

/// A name as it may stand in an error message: one line, not too long.
std::string show_name(std::string_view name);

}  // namespace lamina::io::detail
