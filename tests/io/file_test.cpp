#include <lamina/io/file.h>

#include <csignal>
#include <thread>
#include <vector>

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lamina/core/error.h>

#include "support/catch.h"
#include "support/files.h"

using namespace lamina;
using support::get;
using support::put;
using support::TempDir;

namespace {

size_t files_in(const std::filesystem::path& dir) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(dir), std::filesystem::directory_iterator()));
}

// Files may not grow beyond `bytes` in this scope: a full disk without one.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    getrlimit(RLIMIT_FSIZE, &old_);
    old_handler_ = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{bytes, old_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, old_handler_);
  }

 private:
  rlimit old_{};
  void (*old_handler_)(int) = SIG_DFL;
};

}  // namespace

TEST_CASE("read_file returns every byte, also zeros and none at all") {
  const TempDir dir;
  const std::string bytes("a\0b\r\n\xff", 6);
  CHECK(io::read_file(put(dir / "a", bytes)) == bytes);
  CHECK(io::read_file(put(dir / "empty", "")).empty());
  CHECK(io::read_file(put(dir / "four", "1234"), 4) == "1234");
}

TEST_CASE("read_file refuses what is missing, too large, a directory, a device or a pipe, in one line and without waiting") {
  const TempDir dir;
  CHECK_THROWS_WITH(io::read_file(dir / "none"), "[file] " + (dir / "none").string() + ": cannot read: No such file or directory");
  CHECK_THROWS_WITH(io::read_file(dir.path()), contains("cannot read: Is a directory"));
  CHECK_THROWS_WITH(io::read_file(put(dir / "five", "12345"), 4), contains("holds 5 bytes, at most 4 are expected"));
  CHECK_THROWS_WITH(io::read_file("/dev/zero"), contains("/dev/zero: cannot read: Not a regular file"));
  REQUIRE(mkfifo((dir / "pipe").c_str(), 0600) == 0);
  CHECK_THROWS_AS(io::read_file(dir / "pipe"), InputError);
}

TEST_CASE("InputFile reads in sequence and at offsets, and names where a file ends too early") {
  const TempDir dir;
  io::InputFile file(put(dir / "a", "0123456789"));
  CHECK(file.size() == 10);
  char bytes[16] = {};
  CHECK(file.read(bytes, 4) == 4);
  CHECK(std::string(bytes, 4) == "0123");
  file.read_at(7, bytes, 3);
  CHECK(std::string(bytes, 3) == "789");
  CHECK(file.read(bytes, 16) == 6);
  CHECK(file.read(bytes, 16) == 0);
  CHECK_THROWS_WITH(file.read_at(8, bytes, 3), contains("the file ends at byte 10"));
}

TEST_CASE("write_file_atomically makes and replaces files, and leaves no temporary") {
  const TempDir dir;
  const auto path = dir / "a.json";
  io::write_file_atomically(path, "old and longer");
  CHECK(get(path) == "old and longer");
  io::write_file_atomically(path, "new");
  CHECK(get(path) == "new");
  io::write_file_atomically(path, [](io::OutputFile& file) {
    file.write("two ");
    file.write("parts");
  });
  CHECK(get(path) == "two parts");
  CHECK(files_in(dir.path()) == 1);
}

TEST_CASE("write_file_atomically writes into the working directory, through links, and keeps permissions") {
  const TempDir dir;
  const auto old_dir = std::filesystem::current_path();
  std::filesystem::current_path(dir.path());
  io::write_file_atomically("bare", "x");
  std::filesystem::current_path(old_dir);
  CHECK(get(dir / "bare") == "x");

  std::filesystem::create_symlink("bare", dir / "link");
  REQUIRE(chmod((dir / "bare").c_str(), 0640) == 0);
  io::write_file_atomically(dir / "link", "y");
  CHECK(std::filesystem::is_symlink(dir / "link"));
  CHECK(get(dir / "bare") == "y");
  CHECK((std::filesystem::status(dir / "bare").permissions() & std::filesystem::perms::all) == std::filesystem::perms(0640));
}

TEST_CASE("a failing write says why, keeps the old file and removes its temporary") {
  const TempDir dir;
  const auto path = put(dir / "a", "old");
  SECTION("the writer throws") {
    CHECK_THROWS_WITH(io::write_file_atomically(path,
                                                [](io::OutputFile& file) {
                                                  file.write("new");
                                                  throw Error("[x] changed its mind");
                                                }),
                      "[x] changed its mind");
  }
  SECTION("F14: no room for all of it") {
    const FileSizeLimit limit(1 << 16);
    CHECK_THROWS_WITH(io::write_file_atomically(path, std::string(1 << 20, 'x')), "[file] " + path.string() + ": cannot write: File too large");
  }
  CHECK(get(path) == "old");
  CHECK(files_in(dir.path()) == 1);
}

TEST_CASE("F14: a full disk is noticed, when replacing and when appending") {
  CHECK_THROWS_WITH(io::write_file_atomically("/dev/full", "x"), "[file] /dev/full: cannot write: No space left on device");
  auto file = io::OutputFile::append("/dev/full");
  CHECK_THROWS_WITH(file.write("epoch,nll\n"), "[file] /dev/full: cannot write: No space left on device");
  CHECK(std::filesystem::is_character_file("/dev/full"));  // written to, not replaced
  CHECK_NOTHROW(io::write_file_atomically("/dev/null", "x"));
  CHECK(std::filesystem::is_character_file("/dev/null"));
}

TEST_CASE("G06: places that cannot be written to are named with the system's reason") {
  const TempDir dir;
  put(dir / "file", "x");
  CHECK_THROWS_WITH(io::write_file_atomically(dir / "no/such/file", "x"), contains("no/such/file: cannot write: No such file or directory"));
  CHECK_THROWS_WITH(io::write_file_atomically(dir / "file/below", "x"), contains("file/below: cannot write: Not a directory"));
  CHECK_THROWS_WITH(io::write_file_atomically(dir.path(), "x"), contains("cannot write: Is a directory"));
  CHECK_THROWS_AS(io::write_file_atomically("", "x"), InputError);
  CHECK_THROWS_AS(io::write_file_atomically("/proc/lamina", "x"), InputError);
  CHECK_THROWS_WITH(io::OutputFile::append(dir / "no/file"), contains("cannot write: No such file or directory"));
}

TEST_CASE("F10: a stale temporary of a killed writer is reused and does not show in the result") {
  const TempDir dir;
  put(dir / ".a.tmp", std::string(1000, 'z'));
  io::write_file_atomically(dir / "a", "new");
  CHECK(get(dir / "a") == "new");
  CHECK(files_in(dir.path()) == 1);
}

TEST_CASE("writers of the same file wait for each other: the result is one of the versions, whole") {
  const TempDir dir;
  const auto path = dir / "a";
  std::vector<std::thread> threads;
  for (char letter : {'a', 'b', 'c', 'd'})
    threads.emplace_back([&path, letter] {
      for (int i = 0; i < 20; ++i) io::write_file_atomically(path, std::string(50'000, letter));
    });
  for (auto& thread : threads) thread.join();
  const std::string bytes = get(path);
  CHECK(bytes == std::string(50'000, bytes[0]));
  CHECK(files_in(dir.path()) == 1);
}

TEST_CASE("appended text is in the file at once, after what was there") {
  const TempDir dir;
  auto file = io::OutputFile::append(put(dir / "a.csv", "one\n"));
  file.write("two\n");
  CHECK(get(dir / "a.csv") == "one\ntwo\n");
  file.sync();
  file.write("three\n");
  file.close();
  CHECK(get(dir / "a.csv") == "one\ntwo\nthree\n");
}
