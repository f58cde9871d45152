#include <lamina/io/gzip.h>

#include <algorithm>
#include <array>
#include <new>
#include <string_view>

#include <zlib.h>

#include <lamina/io/file.h>
#include "core/format.h"

namespace lamina::io {

struct GzipReader::State {
  InputFile file;
  bool compressed = false;
  bool between_members = false;  // a member has ended; the next byte, if any, must start another
  bool finished = false;
  z_stream stream{};
  std::array<uint8_t, 1 << 16> buffer{};

  explicit State(const std::filesystem::path& path) : file(path) {
    if (file.size() == 0) fail("the file is empty");
    refill();
    compressed = stream.avail_in >= 2 && buffer[0] == 0x1f && buffer[1] == 0x8b;
    constexpr int gzip_format = 16 + MAX_WBITS;
    if (compressed && inflateInit2(&stream, gzip_format) != Z_OK) throw std::bad_alloc();
  }
  ~State() { inflateEnd(&stream); }

  [[noreturn]] void fail(std::string_view what) const { fail_input("gzip", "{}: {}", file.path().string(), what); }

  bool refill() {
    stream.next_in = buffer.data();
    stream.avail_in = static_cast<uInt>(file.read(buffer.data(), buffer.size()));
    return stream.avail_in > 0;
  }

  size_t read_plain(std::span<uint8_t> out) {
    const size_t buffered = std::min<size_t>(out.size(), stream.avail_in);
    std::copy_n(stream.next_in, buffered, out.data());
    stream.next_in += buffered;
    stream.avail_in -= static_cast<uInt>(buffered);
    return buffered + file.read(out.data() + buffered, out.size() - buffered);
  }

  // Inflates until `count` bytes are there or the data ends; returns how many are missing.
  uInt inflate_some(uint8_t* out, uInt count) {
    stream.next_out = out;
    stream.avail_out = count;
    while (stream.avail_out > 0 && !finished) {
      if (stream.avail_in == 0 && !refill()) {
        if (!between_members) fail("the gzip data ends too early (a truncated file)");
        finished = true;
        break;
      }
      if (between_members && inflateReset(&stream) != Z_OK) fail("cannot reset zlib");
      const bool starting = between_members;
      between_members = false;
      const int result = inflate(&stream, Z_NO_FLUSH);
      if (result == Z_STREAM_END)
        between_members = true;
      else if (result == Z_MEM_ERROR)
        throw std::bad_alloc();
      else if (result != Z_OK && result != Z_BUF_ERROR)
        fail_corrupt(starting);
    }
    return stream.avail_out;
  }

  [[noreturn]] void fail_corrupt(bool starting) const {
    if (starting) fail("bytes that are not gzip follow the gzip data");
    fail(fmt::format("the gzip data is corrupt ({})", stream.msg != nullptr ? stream.msg : "preset dictionary"));
  }
};

GzipReader::GzipReader(const std::filesystem::path& path) : state_(std::make_unique<State>(path)) {}
GzipReader::~GzipReader() = default;

bool GzipReader::compressed() const { return state_->compressed; }

int64_t GzipReader::max_size() const {
  constexpr int64_t deflate_ratio = 1032;  // 258 bytes from two bits, zlib's documented limit
  return state_->compressed ? state_->file.size() * deflate_ratio : state_->file.size();
}

size_t GzipReader::read(std::span<uint8_t> out) {
  if (!state_->compressed) return state_->read_plain(out);
  size_t done = 0;
  while (done < out.size()) {
    const auto wanted = static_cast<uInt>(std::min<size_t>(out.size() - done, 1U << 30));
    const uInt missing = state_->inflate_some(out.data() + done, wanted);
    done += wanted - missing;
    if (missing > 0) break;
  }
  return done;
}

std::string read_gzip(const std::filesystem::path& path, int64_t limit) {
  GzipReader reader(path);
  const int64_t bound = std::min(limit, reader.max_size()) + 1;  // one more, to see that there is no more
  std::string bytes;
  while (static_cast<int64_t>(bytes.size()) < bound) {
    const size_t old_size = bytes.size();
    const size_t step = static_cast<size_t>(std::min<int64_t>(bound - static_cast<int64_t>(old_size), 1 << 20));
    bytes.resize(old_size + step);
    const size_t n = reader.read({reinterpret_cast<uint8_t*>(bytes.data()) + old_size, step});
    bytes.resize(old_size + n);
    if (n < step) return bytes;
  }
  fail_input("gzip", "{}: holds more than the expected {} bytes", path.string(), limit);
}

}  // namespace lamina::io
