#pragma once
// The safetensors format (https://github.com/huggingface/safetensors#format): 8 bytes little-endian header length, a JSON header
// {"__metadata__": {text: text}, "name": {"dtype", "shape", "data_offsets": [begin, end]}, ...} padded with spaces to 8 bytes, then the values.

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <lamina/core/tensor.h>

namespace lamina::io {

struct Safetensors {
  std::vector<std::pair<std::string, Tensor>> tensors;  // in the order of the header
  std::map<std::string, std::string> metadata;
  bool checked = false;  // of a file that was read: it had a checksum, which held

  /// The tensor of that name, or null.
  const Tensor* find(std::string_view name) const;
};

struct SafetensorsOptions {
  /// Adds the metadata entry "lamina.crc32", a CRC-32 of header and values, so that reading notices any changed byte. Other programs ignore it.
  bool checksum = true;
};

/// Writes the file whole or not at all (see write_file_atomically). Tensors may be f32, f64, i64 and u8, on any device, of any shape; their names
/// keep their order, their values are laid out widest type first, so that each is aligned for readers that map the file.
/// Throws Error for an undefined tensor, a name used twice or reserved ("__metadata__"), a metadata key "lamina.crc32" or text that is not UTF-8;
/// InputError when the file cannot be written.
void write_safetensors(const std::filesystem::path& path, const Safetensors& content, const SafetensorsOptions& options = {});

/// Reads F32, F64, I64 and U8 as they are, F16 and BF16 as f32, I32 as i64 and BOOL as u8 (0 or 1). Everything is checked before anything is
/// returned: header, names, types, sizes against offsets, offsets against the file (no gap, no overlap, no byte left over), and the checksum if
/// there is one (it does not appear in `metadata`). Throws InputError "[safetensors] PATH: ..." naming the tensor.
Safetensors read_safetensors(const std::filesystem::path& path);

}  // namespace lamina::io
