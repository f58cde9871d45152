#include <lamina/data/csv.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <string_view>

#include <fmt/ranges.h>

#include <lamina/data/text.h>
#include <lamina/io/file.h>
#include "core/format.h"

namespace lamina::data {
namespace {

namespace fs = std::filesystem;

struct Row {
  int64_t line = 0;
  std::vector<std::string> fields;
};

// Rows of a file, with errors that name file and line.
class Reader {
 public:
  explicit Reader(const fs::path& path) : path_(path.string()), text_(io::read_file(path)) {
    if (const size_t bad = std::min(invalid_utf8(text_), text_.find('\0')); bad != std::string::npos) {
      line_ += std::count(text_.begin(), text_.begin() + static_cast<ptrdiff_t>(bad), '\n');
      fail_at(line_, "byte 0x{:02X} is {}", static_cast<unsigned char>(text_[bad]), text_[bad] ? "not UTF-8" : "not text");
    }
    if (text_.starts_with("\xEF\xBB\xBF")) at_ = 3;
  }

  /// False at the end.
  bool next(Row& row) {
    while (at_ < text_.size() && (text_[at_] == '\n' || text_.compare(at_, 2, "\r\n") == 0)) {  // empty lines
      at_ += text_[at_] == '\n' ? 1 : 2;
      ++line_;
    }
    if (at_ >= text_.size()) return false;
    row = {line_, {}};
    do row.fields.push_back(field());
    while (at_ < text_.size() && text_[at_] == ',' && ++at_);
    if (at_ < text_.size()) {
      at_ += text_[at_] == '\n' ? 1 : 2;
      ++line_;
    }
    return true;
  }

  template <class... Values>
  [[noreturn]] void fail_at(int64_t line, fmt::format_string<Values...> format, Values&&... values) const {
    fail_input("csv", "{}, line {}: {}", path_, line, fmt::format(format, std::forward<Values>(values)...));
  }

 private:
  bool at_end_of_field() const { return at_ >= text_.size() || text_[at_] == ',' || text_[at_] == '\n' || text_.compare(at_, 2, "\r\n") == 0; }

  std::string field() {
    std::string value;
    if (at_ >= text_.size() || text_[at_] != '"') {
      for (; !at_end_of_field(); value += text_[at_++])
        if (text_[at_] == '\r') fail_at(line_, "a carriage return without a line feed; lines end with LF or CR LF");
      return value;
    }
    const int64_t opened = line_;
    for (++at_;; ++at_) {
      if (at_ >= text_.size()) fail_at(opened, "a quote has no end");
      if (text_[at_] == '"' && (at_ + 1 >= text_.size() || text_[at_ + 1] != '"')) break;
      if (text_[at_] == '"') ++at_;
      line_ += text_[at_] == '\n';
      value += text_[at_];
    }
    ++at_;
    if (!at_end_of_field()) fail_at(line_, "expected a comma or the end of the line after a quote, got '{}'", text_.substr(at_, 1));
    return value;
  }

  std::string path_, text_;
  size_t at_ = 0;
  int64_t line_ = 1;
};

// Where the columns of interest stand.
struct Layout {
  size_t id = 0;
  std::vector<size_t> inputs, targets;
};

Layout layout_of(const Reader& reader, const Row& header, const CsvColumns& columns, std::vector<std::string>& inputs) {
  const std::vector<std::string>& names = header.fields;
  for (size_t i = 0; i < names.size(); ++i)
    if (std::find(names.begin(), names.begin() + static_cast<ptrdiff_t>(i), names[i]) != names.begin() + static_cast<ptrdiff_t>(i))
      reader.fail_at(header.line, "column '{}' is named twice", names[i]);
  const auto find = [&](const std::string& name) {
    const auto found = std::ranges::find(names, name);
    if (found == names.end()) reader.fail_at(header.line, "expected a column '{}', got {}", name, fmt::join(names, ", "));
    return static_cast<size_t>(found - names.begin());
  };
  std::vector<std::string> special = columns.regress;
  if (!columns.classify.empty()) special.push_back(columns.classify);
  Layout layout{find(columns.id), {}, {}};
  for (const std::string& name : special) layout.targets.push_back(find(name));
  special.push_back(columns.id);
  if (columns.inputs.empty()) std::ranges::for_each(columns.ignore, find);  // else a slip of the pen would be an input
  const auto is_special = [&](const std::string& name) { return std::ranges::count(special, name) + std::ranges::count(columns.ignore, name) > 0; };
  std::ranges::copy_if(names, std::back_inserter(inputs), [&](const std::string& name) { return !is_special(name); });
  if (inputs.empty()) reader.fail_at(header.line, "expected a column of inputs beside {}", fmt::join(special, ", "));
  for (const std::string& name : inputs)
    if (!columns.inputs.empty() && std::ranges::count(columns.inputs, name) == 0)
      reader.fail_at(header.line, "column '{}' is none of the model's inputs: {}", name, fmt::join(columns.inputs, ", "));
  if (!columns.inputs.empty()) inputs = columns.inputs;
  for (const std::string& name : inputs) layout.inputs.push_back(find(name));
  return layout;
}

float number_in(const Reader& reader, const Row& row, size_t column, const std::string& name) {
  std::string_view text = row.fields[column];
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  float value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || (error != std::errc() && error != std::errc::result_out_of_range) || end != text.data() + text.size())
    reader.fail_at(row.line, "column '{}': expected a number, got '{}'", name, row.fields[column]);
  if (error == std::errc::result_out_of_range) value = static_cast<float>(std::strtod(std::string(text).c_str(), nullptr));  // 0, or too large
  if (!std::isfinite(value)) reader.fail_at(row.line, "column '{}': expected a finite number, got '{}'", name, row.fields[column]);
  return value;
}

// Reads rows into sequences and keeps the last row of each for the targets.
struct Content {
  std::vector<std::string> ids;
  std::vector<int64_t> lengths;
  std::vector<float> steps;
  std::vector<Row> last;
};

Content read_rows(Reader& reader, const Row& header, const Layout& layout, const std::vector<std::string>& inputs) {
  Content content;
  std::set<std::string> seen;
  for (Row row; reader.next(row);) {
    if (row.fields.size() != header.fields.size())
      reader.fail_at(row.line, "expected {} fields, as in the header, got {}", header.fields.size(), row.fields.size());
    const std::string& id = row.fields[layout.id];
    if (content.ids.empty() || content.ids.back() != id) {
      if (!seen.insert(id).second) reader.fail_at(row.line, "sequence '{}' comes back after another one; its rows must stand together", id);
      content.ids.push_back(id);
      content.lengths.push_back(0);
      content.last.emplace_back();
    }
    for (size_t i = 0; i < inputs.size(); ++i) content.steps.push_back(number_in(reader, row, layout.inputs[i], inputs[i]));
    ++content.lengths.back();
    content.last.back() = std::move(row);
  }
  if (content.ids.empty()) reader.fail_at(header.line, "expected rows below the header, got none");
  return content;
}

Tensor read_classes(const Reader& reader, const Content& content, size_t column, const CsvColumns& columns, std::vector<std::string>& classes) {
  std::set<std::string> names;
  for (const Row& row : content.last) {
    if (row.fields[column].empty())
      reader.fail_at(row.line, "column '{}': expected the class of sequence '{}' in its last row, got nothing", columns.classify,
                     content.ids[static_cast<size_t>(&row - content.last.data())]);
    names.insert(row.fields[column]);
  }
  classes = columns.classes.empty() ? std::vector<std::string>(names.begin(), names.end()) : columns.classes;
  if (classes.size() < 2)
    reader.fail_at(content.last.front().line, "column '{}': expected at least two classes, got '{}' alone", columns.classify, classes[0]);
  std::vector<int64_t> labels;
  for (const Row& row : content.last) {
    const auto found = std::ranges::find(classes, row.fields[column]);
    if (found == classes.end())
      reader.fail_at(row.line, "column '{}': class '{}' is none of the model's: {}", columns.classify, row.fields[column], fmt::join(classes, ", "));
    labels.push_back(found - classes.begin());
  }
  return Tensor::from(labels, {static_cast<int64_t>(labels.size())});
}

}  // namespace

CsvSequences read_csv(const fs::path& path, const CsvColumns& columns) {
  if (!columns.classify.empty() && !columns.regress.empty()) fail_input("csv", "expected a column to classify or columns to regress, got both");
  Reader reader(path);
  Row header;
  if (!reader.next(header)) reader.fail_at(1, "expected a header with the names of the columns, got an empty file");
  CsvSequences result;
  const Layout layout = layout_of(reader, header, columns, result.inputs);
  Content content = read_rows(reader, header, layout, result.inputs);
  const auto count = static_cast<int64_t>(content.ids.size()), width = static_cast<int64_t>(result.inputs.size());
  Tensor targets = Tensor::zeros({count}, DType::i64);
  if (!columns.classify.empty()) targets = read_classes(reader, content, layout.targets[0], columns, result.classes);
  if (!columns.regress.empty()) {
    std::vector<float> numbers;
    for (const Row& row : content.last)
      for (size_t k = 0; k < columns.regress.size(); ++k) numbers.push_back(number_in(reader, row, layout.targets[k], columns.regress[k]));
    targets = Tensor::from(numbers, {count, static_cast<int64_t>(columns.regress.size())});
  }
  result.ids = std::move(content.ids);
  result.sequences = {Tensor::from(content.steps, {static_cast<int64_t>(content.steps.size()) / width, width}), std::move(content.lengths), targets};
  return result;
}

}  // namespace lamina::data
