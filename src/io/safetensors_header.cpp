#include "io/safetensors_header.h"

#include <algorithm>
#include <limits>
#include <set>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "core/format.h"

namespace lamina::io::detail {
namespace {

using nlohmann::json;

constexpr const char* metadata_key = "__metadata__";

[[noreturn]] void fail_header(const std::filesystem::path& path, const std::string& what) {
  fail_input("safetensors", "{}: {}", path.string(), what);
}

// JSON objects as nlohmann reads them lose the order of keys and keep one of several equal keys, so a pass before sees to both. (Not a callback of
// json::parse: that looks through the whole parent at the end of each object, hours for 300,000 tensors.)
class HeaderWatch : public nlohmann::json_sax<json> {
 public:
  HeaderWatch(const std::filesystem::path& path, std::vector<std::string>& names) : path_(path), names_(names) {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool start_array(size_t) override { return open(); }
  bool end_array() override { return close(); }
  bool key(string_t& key) override {
    if (!keys_.back().insert(key).second) fail_header(path_, fmt::format("{} stands twice in the header", show_name(key)));
    if (keys_.size() == 1 && key != metadata_key) names_.push_back(key);
    return true;
  }
  bool parse_error(size_t at, const std::string&, const json::exception& error) override {
    if (dynamic_cast<const json::parse_error*>(&error) == nullptr) fail_header(path_, "the header is not valid JSON (a number out of range)");
    fail_header(path_, fmt::format("the header is not valid JSON (at byte {})", at));
  }

 private:
  bool open() {
    // {"name": {"shape": [2]}}: three levels, and nothing deeper.
    if (keys_.size() == 3) fail_header(path_, "the header is nested too deeply");
    keys_.emplace_back();
    return true;
  }
  bool close() {
    keys_.pop_back();
    return true;
  }

  const std::filesystem::path& path_;
  std::vector<std::string>& names_;
  std::vector<std::set<std::string>> keys_;  // of the objects (and, unused, the arrays) around
};

json parse_json(const std::filesystem::path& path, std::string_view text, std::vector<std::string>& names) {
  HeaderWatch watch(path, names);
  json::sax_parse(text, &watch);
  return json::parse(text);
}

bool is_size(const json& value) {
  return value.is_number_unsigned() && value.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
}

bool are_sizes(const json& value) { return value.is_array() && std::all_of(value.begin(), value.end(), is_size); }

TensorEntry parse_entry(const std::filesystem::path& path, const std::string& name, const json& value, int64_t data_bytes) {
  const auto fail_tensor = [&](const std::string& what) { fail_header(path, fmt::format("tensor {}: {}", show_name(name), what)); };
  if (!value.is_object() || value.size() != 3 || !value.contains("dtype") || !value.contains("shape") || !value.contains("data_offsets"))
    fail_tensor("expected an object of dtype, shape and data_offsets");
  const json &dtype = value["dtype"], &shape = value["shape"], &offsets = value["data_offsets"];

  TensorEntry entry;
  entry.name = name;
  if (!dtype.is_string() || bytes_of(dtype.get_ref<const std::string&>()) == 0)
    fail_tensor(fmt::format("dtype: expected F32, F64, I64, U8, F16, BF16, I32 or BOOL, got {}",
                            dtype.is_string() ? show_name(dtype.get_ref<const std::string&>()) : dtype.type_name()));
  entry.dtype = dtype.get<std::string>();
  if (!are_sizes(shape)) fail_tensor("shape: expected an array of sizes");
  if (shape.size() > Shape::max_rank) fail_tensor(fmt::format("shape: expected at most {} dimensions, got {}", Shape::max_rank, shape.size()));
  if (!are_sizes(offsets) || offsets.size() != 2) fail_tensor("data_offsets: expected two offsets");
  entry.begin = offsets[0].get<int64_t>();
  entry.end = offsets[1].get<int64_t>();
  if (entry.begin > entry.end || entry.end > data_bytes)
    fail_tensor(fmt::format("data_offsets: expected a range within the {} bytes of values, got [{}, {}]", data_bytes, entry.begin, entry.end));

  const auto sizes = shape.get<std::vector<int64_t>>();
  // Sizes of 0 first: [0, 2^62, 2^62] holds nothing, but its product would overflow on the way, and Shape refuses it.
  int64_t bytes = bytes_of(entry.dtype);
  bool overflow = false;
  for (int64_t size : sizes) overflow |= __builtin_mul_overflow(bytes, std::max<int64_t>(size, 1), &bytes);
  if (std::count(sizes.begin(), sizes.end(), 0) > 0) bytes = 0;
  if (overflow || bytes != entry.end - entry.begin)
    fail_tensor(fmt::format("{} [{}] takes {} bytes, but data_offsets give {}", entry.dtype, fmt::join(sizes, ", "),
                            overflow ? "too many" : fmt::format("{}", bytes), entry.end - entry.begin));
  entry.shape = Shape(std::span<const int64_t>(sizes));
  return entry;
}

void check_layout(const std::filesystem::path& path, const std::vector<TensorEntry>& entries, int64_t data_bytes) {
  std::vector<const TensorEntry*> sorted;
  for (const TensorEntry& entry : entries) sorted.push_back(&entry);
  std::sort(sorted.begin(), sorted.end(), [](auto* a, auto* b) { return std::pair(a->begin, a->end) < std::pair(b->begin, b->end); });
  int64_t at = 0;
  for (const TensorEntry* entry : sorted) {
    if (entry->begin != at)
      fail_header(path, fmt::format("tensor {}: data_offsets: expected to begin at {}, got {} ({})", show_name(entry->name), at, entry->begin,
                                    entry->begin < at ? "two tensors overlap" : "there is a gap"));
    at = entry->end;
  }
  if (at != data_bytes) fail_header(path, fmt::format("the tensors end at byte {} of the values, but the file has {} there", at, data_bytes));
}

}  // namespace

int64_t bytes_of(std::string_view dtype) {
  if (dtype == "F64" || dtype == "I64") return 8;
  if (dtype == "F32" || dtype == "I32") return 4;
  if (dtype == "F16" || dtype == "BF16") return 2;
  return dtype == "U8" || dtype == "BOOL" ? 1 : 0;
}

SafetensorsHeader parse_header(const std::filesystem::path& path, std::string_view text, int64_t data_bytes) {
  if (text.empty() || text[0] != '{') fail_header(path, "the header does not begin with '{'");
  std::vector<std::string> names;
  const json root = parse_json(path, text, names);
  SafetensorsHeader header;
  if (root.contains(metadata_key)) {
    const json& metadata = root[metadata_key];
    if (!metadata.is_object()) fail_header(path, fmt::format("{}: expected an object of strings", metadata_key));
    for (const auto& [key, value] : metadata.items()) {
      if (!value.is_string()) fail_header(path, fmt::format("{}: {}: expected a string", metadata_key, show_name(key)));
      header.metadata[key] = value.get<std::string>();
    }
  }
  for (const std::string& name : names) header.entries.push_back(parse_entry(path, name, root[name], data_bytes));
  check_layout(path, header.entries, data_bytes);
  return header;
}

std::string print_header(const SafetensorsHeader& header) {
  nlohmann::ordered_json::object_t root;  // a vector of pairs: appended to directly, for its own insertion searches
  if (!header.metadata.empty()) root.emplace_back(metadata_key, header.metadata);
  for (const TensorEntry& entry : header.entries) {
    const std::vector<int64_t> sizes(entry.shape.begin(), entry.shape.end());
    nlohmann::ordered_json value = {{"dtype", entry.dtype}, {"shape", sizes}, {"data_offsets", {entry.begin, entry.end}}};
    root.emplace_back(entry.name, std::move(value));
  }
  try {
    return nlohmann::ordered_json(std::move(root)).dump();
  } catch (const nlohmann::json::exception&) {
    fail("safetensors", "names and metadata: expected UTF-8 text");
  }
}

size_t find_checksum(std::string_view header) {
  // Inside a JSON string the quotes would be escaped, so this text can only be the entry itself.
  const std::string entry = fmt::format("\"{}\":\"", checksum_key);
  const size_t at = header.find(entry);
  return at == std::string_view::npos || header.size() - at < entry.size() + 8 ? std::string_view::npos : at + entry.size();
}

std::string show_name(std::string_view name) {
  constexpr size_t longest = 100;
  std::string text(name.substr(0, longest));
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  return "'" + text + (name.size() > longest ? "...'" : "'");
}

}  // namespace lamina::io::detail
