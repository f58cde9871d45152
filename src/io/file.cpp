#include <lamina/io/file.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/format.h"

namespace lamina::io {
namespace {

namespace fs = std::filesystem;

// One system call may move at most 2^31 - 4096 bytes on Linux; larger requests are cut here rather than relied upon.
constexpr size_t max_transfer = size_t{1} << 30;

[[noreturn]] void fail_errno(const fs::path& path, const char* action, int error = errno) {
  fail_input("file", "{}: cannot {}: {}", path.string(), action, std::generic_category().message(error));
}

template <class F>
auto retry(F&& call) {
  decltype(call()) result;
  do result = call();
  while (result < 0 && errno == EINTR);
  return result;
}

int open_file(const fs::path& path, int flags) {
  return retry([&] { return ::open(path.c_str(), flags | O_CLOEXEC, 0666); });
}

// Opens the temporary and holds its lock. Another writer may have renamed or removed the file between our open and our lock; then the
// lock is on a file that no longer has the name, and we start again.
int open_locked(const fs::path& temporary, const fs::path& path) {
  for (;;) {
    const int fd = open_file(temporary, O_RDWR | O_CREAT | O_NOFOLLOW);
    if (fd < 0) fail_errno(path, "write");
    // File systems without locks (some network ones) say so; there a run folder has a single writer anyway.
    retry([&] { return ::flock(fd, LOCK_EX); });
    struct stat held {
    }, named{};
    if (::fstat(fd, &held) == 0 && ::lstat(temporary.c_str(), &named) == 0 && held.st_ino == named.st_ino && held.st_dev == named.st_dev) return fd;
    ::close(fd);
  }
}

void sync_directory(const fs::path& directory, const fs::path& path) {
  const int fd = open_file(directory, O_RDONLY | O_DIRECTORY);
  if (fd < 0) return;  // a directory that may be written but not read: the rename is done, only its durability is unknown
  const int result = retry([&] { return ::fsync(fd); });
  const int error = errno;
  ::close(fd);
  if (result < 0 && error != EINVAL && error != EROFS) fail_errno(path, "sync the directory", error);
}

}  // namespace

InputFile::InputFile(fs::path path) : path_(std::move(path)) {
  // Without O_NONBLOCK, opening a pipe would wait for its writer for ever.
  fd_ = open_file(path_, O_RDONLY | O_NONBLOCK);
  if (fd_ < 0) fail_errno(path_, "read");
  struct stat info {};
  const int error = ::fstat(fd_, &info) < 0 ? errno : S_ISREG(info.st_mode) ? 0 : S_ISDIR(info.st_mode) ? EISDIR : -1;
  size_ = info.st_size;
  if (error == 0) return;
  ::close(fd_);
  if (error > 0) fail_errno(path_, "read", error);
  fail_input("file", "{}: cannot read: Not a regular file", path_.string());
}

InputFile::~InputFile() { ::close(fd_); }

size_t InputFile::read(void* out, size_t count) {
  size_t done = 0;
  while (done < count) {
    const ssize_t n = retry([&] { return ::read(fd_, static_cast<char*>(out) + done, std::min(count - done, max_transfer)); });
    if (n < 0) fail_errno(path_, "read");
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}

void InputFile::read_at(int64_t offset, void* out, size_t count) const {
  for (size_t done = 0; done < count;) {
    const auto at = static_cast<off_t>(offset) + static_cast<off_t>(done);
    const ssize_t n = retry([&] { return ::pread(fd_, static_cast<char*>(out) + done, std::min(count - done, max_transfer), at); });
    if (n < 0) fail_errno(path_, "read");
    if (n == 0) fail_input("file", "{}: cannot read: the file ends at byte {}", path_.string(), at);
    done += static_cast<size_t>(n);
  }
}

OutputFile OutputFile::append(fs::path path) {
  const int fd = open_file(path, O_WRONLY | O_CREAT | O_APPEND);
  if (fd < 0) fail_errno(path, "write");
  return OutputFile(std::move(path), fd);
}

OutputFile::OutputFile(OutputFile&& other) noexcept : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
}

void OutputFile::write(const void* bytes, size_t count) {
  for (size_t done = 0; done < count;) {
    const ssize_t n = retry([&] { return ::write(fd_, static_cast<const char*>(bytes) + done, std::min(count - done, max_transfer)); });
    if (n < 0) fail_errno(path_, "write");
    done += static_cast<size_t>(n);
  }
}

void OutputFile::sync() {
  // Devices and pipes answer EINVAL: they have nothing to sync.
  if (retry([&] { return ::fsync(fd_); }) < 0 && errno != EINVAL && errno != EROFS) fail_errno(path_, "write");
}

void OutputFile::close() {
  // Linux frees the descriptor whatever close() answers, so it is never called twice.
  if (const int fd = std::exchange(fd_, -1); fd >= 0 && ::close(fd) < 0 && errno != EINTR) fail_errno(path_, "write");
}

std::string read_file(const fs::path& path, int64_t limit) {
  InputFile file(path);
  if (file.size() > limit) fail_input("file", "{}: holds {} bytes, at most {} are expected", path.string(), file.size(), limit);
  std::string bytes(static_cast<size_t>(file.size()), '\0');
  bytes.resize(file.read(bytes.data(), bytes.size()));
  return bytes;
}

void write_file_atomically(const fs::path& path, const std::function<void(OutputFile&)>& fill) {
  std::error_code ignored;
  const fs::path target = fs::is_symlink(path, ignored) ? fs::weakly_canonical(path, ignored) : path;
  struct stat old {};
  const bool exists = ::stat(target.c_str(), &old) == 0;
  if (exists && S_ISDIR(old.st_mode)) fail_errno(path, "write", EISDIR);
  if (target.filename().empty()) fail_errno(path, "write", ENOENT);
  if (exists && !S_ISREG(old.st_mode)) {
    const int fd = open_file(target, O_WRONLY);
    if (fd < 0) fail_errno(path, "write");
    OutputFile file(path, fd);
    fill(file);
    file.sync();
    return file.close();
  }
  const fs::path directory = target.has_parent_path() ? target.parent_path() : fs::path(".");
  const fs::path temporary = directory / ("." + target.filename().string() + ".tmp");
  OutputFile file(path, open_locked(temporary, path));
  try {
    if (::ftruncate(file.fd_, 0) < 0) fail_errno(path, "write");
    if (exists && ::fchmod(file.fd_, old.st_mode & 07777) < 0) fail_errno(path, "write");
    fill(file);
    file.sync();
    // Renamed while the lock is held, so that no other writer can have touched the temporary.
    if (::rename(temporary.c_str(), target.c_str()) < 0) fail_errno(path, "write");
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  file.close();
  sync_directory(directory, path);
}

void write_file_atomically(const fs::path& path, std::string_view bytes) {
  write_file_atomically(path, [&](OutputFile& file) { file.write(bytes); });
}

fs::path program_path() {
  std::error_code unknown;
  return fs::read_symlink("/proc/self/exe", unknown);
}

}  // namespace lamina::io
