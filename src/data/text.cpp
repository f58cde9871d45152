#include <lamina/data/text.h>

#include <zlib.h>

#include <algorithm>
#include <charconv>

#include <lamina/core/random.h>
#include <lamina/io/file.h>
#include "core/format.h"

namespace lamina::data {
namespace {

struct Decoded {
  char32_t symbol = 0;
  size_t bytes = 0;  // 0: not UTF-8
};

// Unicode's scalar values: no halves of surrogate pairs.
bool is_symbol(char32_t symbol) { return symbol < 0xD800 || (symbol >= 0xE000 && symbol < 0x110000); }

// The character at the start of `text`, which is not empty.
Decoded first_character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const size_t bytes = lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
  if (bytes == 0 || bytes > text.size()) return {};
  char32_t symbol = lead & (0x7Fu >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {};
    symbol = symbol << 6 | (byte(i) & 0x3Fu);
  }
  const char32_t least = bytes == 2 ? 0x80 : bytes == 3 ? 0x800 : 0x10000;
  if (symbol < least || !is_symbol(symbol)) return {};
  return {symbol, bytes};
}

std::string utf8(char32_t symbol) {
  const auto tail = [symbol](int shift) { return static_cast<char>(0x80 | (symbol >> shift & 0x3F)); };
  if (symbol < 0x80) return {static_cast<char>(symbol)};
  if (symbol < 0x800) return {static_cast<char>(0xC0 | symbol >> 6), tail(0)};
  if (symbol < 0x10000) return {static_cast<char>(0xE0 | symbol >> 12), tail(6), tail(0)};
  return {static_cast<char>(0xF0 | symbol >> 18), tail(12), tail(6), tail(0)};
}

// Calls visit(symbol, byte position, number of the symbol); throws for what is not UTF-8.
template <class Visit>
void each_symbol(std::string_view text, TextUnit unit, const std::string& where, Visit&& visit) {
  int64_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const Decoded next = unit == TextUnit::byte ? Decoded{static_cast<unsigned char>(text[at]), 1} : first_character(text.substr(at));
    if (next.bytes == 0)
      fail_input("text", "{}: byte {} (0x{:02X}) is not UTF-8; --unit byte reads any file", where, at, static_cast<unsigned char>(text[at]));
    visit(next.symbol, number++);
    at += next.bytes;
  }
}

// For errors: "'x' (U+0078)"; control characters by their number alone.
std::string name_of(char32_t symbol) {
  const std::string number = fmt::format("U+{:04X}", static_cast<uint32_t>(symbol));
  return symbol < 0x20 || symbol == 0x7F ? number : fmt::format("'{}' ({})", utf8(symbol), number);
}

}  // namespace

TextUnit parse_unit(const std::string& text) {
  if (text == "character") return TextUnit::character;
  if (text == "byte") return TextUnit::byte;
  fail_input("text", "unit: expected character or byte, got '{}'", text);
}

std::string to_string(TextUnit unit) { return unit == TextUnit::character ? "character" : "byte"; }

size_t invalid_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = first_character(text.substr(at)).bytes;
    if (bytes == 0) return at;
    at += bytes;
  }
  return std::string_view::npos;
}

std::string read_text(const std::string& path, TextUnit unit) {
  std::string text = io::read_file(path);
  if (unit == TextUnit::character) {
    if (const size_t at = invalid_utf8(text); at != std::string::npos)
      fail_input("text", "{}: byte {} (0x{:02X}) is not UTF-8; --unit byte reads any file", path, at, static_cast<unsigned char>(text[at]));
    if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
    size_t kept = 0;
    for (size_t i = 0; i < text.size(); ++i)
      if (text[i] != '\r' || i + 1 == text.size() || text[i + 1] != '\n') text[kept++] = text[i];
    text.resize(kept);
  }
  if (text.empty()) fail_input("text", "{}: the file is empty", path);
  return text;
}

Vocabulary Vocabulary::of(std::string_view text, TextUnit unit) {
  Vocabulary result;
  result.unit_ = unit;
  if (unit == TextUnit::byte) {
    for (char32_t byte = 0; byte < 256; ++byte) result.symbols_.push_back(byte);
    return result;
  }
  std::vector<bool> seen(0x110000);
  each_symbol(text, unit, "the text", [&](char32_t symbol, int64_t) { seen[symbol] = true; });
  for (char32_t symbol = 0; symbol < seen.size(); ++symbol)
    if (seen[symbol]) result.symbols_.push_back(symbol);
  return result;
}

int64_t Vocabulary::find(char32_t symbol) const {
  const auto found = std::ranges::lower_bound(symbols_, symbol);
  return found == symbols_.end() || *found != symbol ? -1 : found - symbols_.begin();
}

std::vector<int32_t> Vocabulary::encode(std::string_view text, const std::string& where) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size());
  each_symbol(text, unit_, where, [&](char32_t symbol, int64_t number) {
    const int64_t id = find(symbol);
    if (id < 0) fail_input("text", "{}: character {} at position {} is not in the vocabulary", where, name_of(symbol), number);
    ids.push_back(static_cast<int32_t>(id));
  });
  return ids;
}

std::string Vocabulary::decode(int64_t id) const {
  if (id < 0 || id >= size()) fail("text", "decode: expected a symbol from 0 to {}, got {}", size() - 1, id);
  const char32_t symbol = symbols_[static_cast<size_t>(id)];
  return unit_ == TextUnit::byte ? std::string(1, static_cast<char>(symbol)) : utf8(symbol);
}

std::string Vocabulary::str() const {
  std::string text = to_string(unit_);
  if (unit_ == TextUnit::character)
    for (const char32_t symbol : symbols_) text += fmt::format(" {}", static_cast<uint32_t>(symbol));
  return text;
}

Vocabulary Vocabulary::parse(const std::string& text) {
  if (text == "byte") return of("", TextUnit::byte);
  Vocabulary result;
  result.unit_ = TextUnit::character;
  const std::string begin = "character";
  bool good = text.starts_with(begin + " ");
  for (const char *at = text.data() + begin.size(), *end = text.data() + text.size(); good && at != end;) {
    uint32_t symbol = 0;
    const auto [rest, error] = std::from_chars(at + 1, end, symbol);
    good = *at == ' ' && error == std::errc() && is_symbol(symbol) && (result.symbols_.empty() || result.symbols_.back() < symbol);
    result.symbols_.push_back(symbol);
    at = rest;
  }
  if (!good) fail_input("text", "damaged vocabulary '{}'", text.substr(0, 40));
  return result;
}

TextBatches::TextBatches(std::shared_ptr<const std::vector<int32_t>> text, const TextBatchesOptions& options)
    : text_(std::move(text)), options_(options) {
  if (!text_) fail_input("text", "text: expected symbols, got a null pointer");
  if (options.batch_size < 1) fail_input("text", "batch size: expected at least 1, got {}", options.batch_size);
  if (options.steps < 1) fail_input("text", "steps: expected at least 1, got {}", options.steps);
  const auto size = static_cast<int64_t>(text_->size());
  int64_t cell = 0;
  const bool huge = __builtin_mul_overflow(options.batch_size, options.steps, &cell);
  if (huge || size - 1 < cell)
    fail_input("text", "expected at least {} symbols (a batch of {} streams of {} steps, and the last target), got {}",
               huge ? "2^63" : fmt::format("{}", cell + 1), options.batch_size, options.steps, size);
  num_batches_ = (size - 1) / cell;
}

TextBatch TextBatches::batch(int64_t epoch, int64_t index) const {
  if (index < 0 || index >= num_batches_) fail("text", "batch: expected 0 to {}, got {}", num_batches_ - 1, index);
  const int64_t streams = options_.batch_size, steps = options_.steps, used = num_batches_ * streams * steps;
  const int64_t spare = static_cast<int64_t>(text_->size()) - 1 - used;
  const int64_t offset = Rng(options_.seed).stream(fmt::format("data/text/{}", epoch)).below(spare + 1);
  TextBatch batch{Tensor::empty({steps, streams}, DType::i64), Tensor::empty({steps, streams}, DType::i64)};
  auto *x = batch.x.mutable_data<int64_t>(), *y = batch.y.mutable_data<int64_t>();
  for (int64_t n = 0; n < streams; ++n) {
    const int32_t* from = text_->data() + offset + n * num_batches_ * steps + index * steps;
    for (int64_t t = 0; t < steps; ++t) {
      x[t * streams + n] = from[t];
      y[t * streams + n] = from[t + 1];
    }
  }
  return batch;
}

uint32_t checksum(const std::vector<int32_t>& text) {
  return static_cast<uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(text.data()), text.size() * sizeof(int32_t)));
}

}  // namespace lamina::data
