#include <lamina/io/safetensors.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <set>

#include <zlib.h>

#include <lamina/io/file.h>
#include "core/format.h"
#include "io/safetensors_header.h"

namespace lamina::io {
namespace {

using detail::SafetensorsHeader;
using detail::show_name;
using detail::TensorEntry;

static_assert(std::endian::native == std::endian::little, "safetensors values are little-endian and are read and written as they are");

constexpr size_t length_bytes = 8;

const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::f32: return "F32";
    case DType::f64: return "F64";
    case DType::i64: return "I64";
    case DType::u8: return "U8";
  }
  return "";
}

uint32_t crc_of(uint32_t crc, const void* bytes, size_t count) {
  return static_cast<uint32_t>(crc32_z(crc, static_cast<const Bytef*>(bytes), count));
}

// -- values ---------------------------------------------------------------------------------------------------------

float from_half(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000U} << 16, exponent = half >> 10 & 0x1f, mantissa = half & 0x3ff;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000 | mantissa << 13);                                    // infinity, NaN
  if (exponent == 0) return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(static_cast<float>(mantissa) * 0x1p-24F));  // zero, subnormal
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

float from_bfloat(uint16_t bfloat) { return std::bit_cast<float>(uint32_t{bfloat} << 16); }

template <class From, class To, class F>
Tensor converted(const std::vector<uint8_t>& bytes, const Shape& shape, F&& convert) {
  Tensor result = Tensor::empty(shape, dtype_of<To>());
  To* out = result.mutable_data<To>();
  for (size_t i = 0; i < bytes.size() / sizeof(From); ++i) {
    From value;
    std::memcpy(&value, bytes.data() + i * sizeof(From), sizeof(From));
    out[i] = convert(value);
  }
  return result;
}

// Reads one tensor and takes its bytes, as they stand in the file, into `crc`.
Tensor read_values(const InputFile& file, const TensorEntry& entry, int64_t data_begin, uint32_t& crc) {
  const auto count = static_cast<size_t>(entry.end - entry.begin);
  const auto read_into = [&](void* out) {
    if (count == 0) return;
    file.read_at(data_begin + entry.begin, out, count);
    crc = crc_of(crc, out, count);
  };
  for (DType dtype : {DType::f32, DType::f64, DType::i64, DType::u8}) {
    if (entry.dtype != dtype_name(dtype)) continue;
    Tensor result = Tensor::empty(entry.shape, dtype);
    read_into(result.mutable_raw_data());
    return result;
  }
  std::vector<uint8_t> bytes(count);
  read_into(bytes.data());
  if (entry.dtype == "F16") return converted<uint16_t, float>(bytes, entry.shape, from_half);
  if (entry.dtype == "BF16") return converted<uint16_t, float>(bytes, entry.shape, from_bfloat);
  if (entry.dtype == "I32") return converted<int32_t, int64_t>(bytes, entry.shape, [](int32_t v) { return int64_t{v}; });
  return converted<uint8_t, uint8_t>(bytes, entry.shape, [](uint8_t v) { return static_cast<uint8_t>(v != 0); });
}

// -- writing --------------------------------------------------------------------------------------------------------

// Indices of the entries in the order of their values in the file: widest elements first, else as given.
std::vector<size_t> layout(const std::vector<Tensor>& tensors) {
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return size_of(tensors[a].dtype()) > size_of(tensors[b].dtype()); });
  return order;
}

SafetensorsHeader describe(const Safetensors& content, const SafetensorsOptions& options) {
  SafetensorsHeader header;
  header.metadata = content.metadata;
  if (content.metadata.contains(std::string(detail::checksum_key))) fail("safetensors", "metadata: the key {} is reserved", detail::checksum_key);
  if (options.checksum) header.metadata[std::string(detail::checksum_key)] = "00000000";
  std::set<std::string_view> names;
  for (const auto& [name, tensor] : content.tensors) {
    if (name == "__metadata__") fail("safetensors", "tensor name: '__metadata__' is reserved");
    if (!names.insert(name).second) fail("safetensors", "tensor name: {} is used twice", show_name(name));
    if (!tensor.defined()) fail("safetensors", "tensor {}: expected a defined tensor", show_name(name));
    header.entries.push_back({name, dtype_name(tensor.dtype()), tensor.shape(), 0, 0});
  }
  return header;
}

// Header length and header, padded so that the values begin at a multiple of 8.
std::string frame(const SafetensorsHeader& header) {
  std::string text = detail::print_header(header);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (static_cast<int64_t>(text.size()) > detail::max_header_bytes)
    fail("safetensors", "the header would take {} bytes, at most {} are allowed", text.size(), detail::max_header_bytes);
  const uint64_t length = text.size();
  std::string bytes(length_bytes, '\0');
  std::memcpy(bytes.data(), &length, length_bytes);
  return bytes + text;
}

}  // namespace

const Tensor* Safetensors::find(std::string_view name) const {
  const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const auto& entry) { return entry.first == name; });
  return found == tensors.end() ? nullptr : &found->second;
}

void write_safetensors(const std::filesystem::path& path, const Safetensors& content, const SafetensorsOptions& options) {
  SafetensorsHeader header = describe(content, options);
  std::vector<Tensor> tensors;
  for (const auto& [name, tensor] : content.tensors) tensors.push_back(tensor.detach().to(Device::cpu()));
  const std::vector<size_t> order = layout(tensors);
  int64_t end = 0;
  for (size_t i : order) {
    header.entries[i].begin = end;
    header.entries[i].end = end += tensors[i].nbytes();
  }
  std::string head = frame(header);
  if (options.checksum) {
    uint32_t crc = crc_of(0, head.data(), head.size());
    for (size_t i : order)
      if (tensors[i].nbytes() > 0) crc = crc_of(crc, tensors[i].raw_data(), static_cast<size_t>(tensors[i].nbytes()));
    head.replace(detail::find_checksum(head), 8, fmt::format("{:08x}", crc));
  }
  write_file_atomically(path, [&](OutputFile& file) {
    file.write(head);
    for (size_t i : order)
      if (tensors[i].nbytes() > 0) file.write(tensors[i].raw_data(), static_cast<size_t>(tensors[i].nbytes()));
  });
}

Safetensors read_safetensors(const std::filesystem::path& path) {
  const auto fail_file = [&](const std::string& what) { fail_input("safetensors", "{}: {}", path.string(), what); };
  const InputFile file(path);
  uint64_t length = 0;
  if (file.size() < static_cast<int64_t>(length_bytes)) fail_file(fmt::format("expected at least 8 bytes, got {}", file.size()));
  file.read_at(0, &length, length_bytes);
  const uint64_t rest = static_cast<uint64_t>(file.size()) - length_bytes;
  if (length > rest || length > static_cast<uint64_t>(detail::max_header_bytes))
    fail_file(fmt::format("header length: expected at most {}, got {}", std::min(rest, static_cast<uint64_t>(detail::max_header_bytes)), length));
  std::string head(length_bytes + length, '\0');
  file.read_at(0, head.data(), head.size());
  const auto data_begin = static_cast<int64_t>(head.size());
  SafetensorsHeader header = detail::parse_header(path, std::string_view(head).substr(length_bytes), file.size() - data_begin);

  const auto stored = header.metadata.extract(std::string(detail::checksum_key));
  if (!stored.empty()) {
    const size_t at = detail::find_checksum(head);
    if (at == std::string::npos) fail_file("checksum: the header has been rewritten since");
    head.replace(at, 8, "00000000");
  }
  uint32_t crc = crc_of(0, head.data(), head.size());

  Safetensors content;
  content.metadata = std::move(header.metadata);
  content.checked = !stored.empty();
  content.tensors.resize(header.entries.size());
  std::vector<size_t> order(header.entries.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return header.entries[a].begin < header.entries[b].begin; });
  for (size_t i : order) content.tensors[i] = {header.entries[i].name, read_values(file, header.entries[i], data_begin, crc)};
  if (const std::string computed = fmt::format("{:08x}", crc); !stored.empty() && stored.mapped() != computed)
    fail_file(fmt::format("checksum: expected {}, got {} (the file is damaged)", show_name(stored.mapped()), computed));
  return content;
}

}  // namespace lamina::io
