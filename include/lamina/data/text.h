#pragma once
// Text for language models: symbols (characters or bytes) as numbers, cut into streams that are read side by side.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <lamina/core/tensor.h>

namespace lamina::data {

/// What a symbol is: a Unicode character (code point) of UTF-8 text, or a byte of any file.
enum class TextUnit { character, byte };
/// "character" or "byte"; throws InputError otherwise.
TextUnit parse_unit(const std::string& text);
std::string to_string(TextUnit unit);

/// Position of the first byte that does not belong to valid UTF-8 (RFC 3629: nothing overlong, no surrogates), or npos.
size_t invalid_utf8(std::string_view text);

/// The text of a file as a model sees it. Characters: a byte order mark at the start is dropped and CR LF becomes LF, so that no model learns to
/// write them. Bytes: as they are. Throws InputError naming the file: one that is empty, cannot be read, or, for characters, holds no UTF-8 (with the
/// position).
std::string read_text(const std::string& path, TextUnit unit);

/// The symbols that a model knows, numbered from 0. Bytes: all 256, each its own number. Characters: those of a text, in the order of their code
/// points.
class Vocabulary {
 public:
  Vocabulary() = default;
  static Vocabulary of(std::string_view text, TextUnit unit);

  TextUnit unit() const { return unit_; }
  int64_t size() const { return static_cast<int64_t>(symbols_.size()); }
  /// Throws InputError "[text] WHERE: character 'x' (U+0078) at position 3 is not in the vocabulary" for an unknown symbol and for what is not UTF-8.
  std::vector<int32_t> encode(std::string_view text, const std::string& where) const;
  /// The bytes of a symbol.
  std::string decode(int64_t id) const;
  /// The number of a symbol, or -1.
  int64_t find(char32_t symbol) const;

  /// "byte", or "character 10 32 97 ..." with the code points. parse() is the inverse and throws InputError.
  std::string str() const;
  static Vocabulary parse(const std::string& text);

 private:
  TextUnit unit_ = TextUnit::byte;
  std::vector<char32_t> symbols_;  // rising
};

struct TextBatch {
  Tensor x, y;  // i64 [T, N]: symbols, and the symbol after each
};

struct TextBatchesOptions {
  int64_t batch_size = 1;  // N: streams read side by side
  int64_t steps = 1;       // T
  uint64_t seed = 0;
};

/// Cuts a text into N streams of equal length and those into batches of T steps: stream n of a batch goes on where it stopped in the batch before, so
/// that a state may be carried over. The symbols that do not fill a batch (fewer than N T) are left out at both ends; how many at which is drawn anew
/// for each epoch, from (seed, epoch).
class TextBatches {
 public:
  /// Throws InputError for a batch size or steps below 1, for no text and for fewer than N T + 1 symbols.
  TextBatches(std::shared_ptr<const std::vector<int32_t>> text, const TextBatchesOptions& options);

  const TextBatchesOptions& options() const { return options_; }
  const std::vector<int32_t>& text() const { return *text_; }
  /// Batches of an epoch.
  int64_t num_batches() const { return num_batches_; }
  TextBatch batch(int64_t epoch, int64_t index) const;

 private:
  std::shared_ptr<const std::vector<int32_t>> text_;
  TextBatchesOptions options_;
  int64_t num_batches_ = 0;
};

/// CRC-32 of the symbols.
uint32_t checksum(const std::vector<int32_t>& text);

}  // namespace lamina::data
