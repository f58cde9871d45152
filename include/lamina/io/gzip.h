#pragma once
// Reading files that may be gzipped (RFC 1952). Whether one is shows in its first two bytes, not in its name.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace lamina::io {

/// A file read front to back, decompressed on the way if it is gzipped. Damage is never passed over: whatever is cut off, flipped or not gzip
/// throws InputError "[gzip] PATH: ...". Several gzip members one after another are read as one; anything else behind a member is refused.
/// The constructor throws InputError for a file that is missing, unreadable, not a regular file, or empty.
class GzipReader {
 public:
  explicit GzipReader(const std::filesystem::path& path);
  ~GzipReader();

  /// Fills `out` as far as the data goes and returns how far. Less than all of it means the end, reached with every check passed (CRC-32 and
  /// length of each member); so after the last expected byte ask for one more.
  size_t read(std::span<uint8_t> out);

  bool compressed() const;
  /// What the whole file can hold at the very most: its size if plain, 1032 times as much if gzipped (deflate cannot do better). To be asked
  /// before memory is allocated for a size that the file claims.
  int64_t max_size() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// All bytes of a plain or gzipped file. Throws InputError as above, and when they are more than `limit` (then no more than that is ever held).
std::string read_gzip(const std::filesystem::path& path, int64_t limit);

}  // namespace lamina::io
