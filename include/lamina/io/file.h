#pragma once
// Files with every failure noticed: a read knows how much there is, a write is checked to the last byte, and a file is replaced whole or not at all.
// All failures throw InputError "[file] PATH: cannot ...: REASON", with the system's own words as the reason.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace lamina::io {

/// A regular file open for reading. The constructor throws InputError for what is missing, unreadable, a directory, a pipe or a device.
class InputFile {
 public:
  explicit InputFile(std::filesystem::path path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// Size in bytes when it was opened.
  int64_t size() const { return size_; }
  /// The next bytes, as many as there are up to `count`; 0 at the end.
  size_t read(void* out, size_t count);
  /// Exactly `count` bytes from `offset` on; throws InputError when the file ends before.
  void read_at(int64_t offset, void* out, size_t count) const;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  int64_t size_ = 0;
};

/// A file open for writing, unbuffered, so that a full disk shows at the write that met it.
class OutputFile {
 public:
  /// Opens for appending, and makes the file if it is missing (its directory must exist).
  static OutputFile append(std::filesystem::path path);
  ~OutputFile();
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;

  void write(const void* bytes, size_t count);
  void write(std::string_view text) { write(text.data(), text.size()); }
  /// Waits until the bytes are on the disk.
  void sync();
  /// Checked; the destructor closes too, but cannot report.
  void close();

 private:
  OutputFile(std::filesystem::path path, int fd) : path_(std::move(path)), fd_(fd) {}
  friend void write_file_atomically(const std::filesystem::path& path, const std::function<void(OutputFile&)>& fill);

  std::filesystem::path path_;  // as named in errors
  int fd_ = -1;
};

/// All bytes of a file; throws InputError when they are more than `limit`.
std::string read_file(const std::filesystem::path& path, int64_t limit = int64_t{1} << 30);

/// Replaces the file by what `fill` writes, or leaves it as it was: a temporary ".NAME.tmp" beside it is written, synced and renamed, then the
/// directory is synced. A process killed at any moment leaves the old or the new file, and at most that one temporary, which the next write of
/// the same file reuses. On failure (also when `fill` throws) the temporary is removed. Writers of the same path wait for each other.
/// A symbolic link is followed; the old file's permissions are kept. A device (/dev/stdout, /dev/full) or pipe is written directly.
void write_file_atomically(const std::filesystem::path& path, const std::function<void(OutputFile&)>& fill);
void write_file_atomically(const std::filesystem::path& path, std::string_view bytes);

/// The file of the running program, or an empty path where the system does not tell.
std::filesystem::path program_path();

}  // namespace lamina::io
