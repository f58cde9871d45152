#include <lamina/data/cifar.h>

#include <algorithm>
#include <string>
#include <vector>

#include <lamina/io/file.h>
#include "core/format.h"

namespace lamina::data {
namespace {

namespace fs = std::filesystem;

constexpr int64_t classes = 10, colours = 3, side = 32, pixels = colours * side * side, record = 1 + pixels;

fs::path find_file(const fs::path& dir, const std::string& name) {
  std::error_code ignored;
  for (const fs::path& folder : {dir, dir / "cifar-10-batches-bin"})
    if (fs::exists(folder / name, ignored)) return folder / name;
  if (!fs::is_directory(dir, ignored)) fail_input("cifar10", "{}: no such directory (expected the CIFAR-10 binary files there)", dir.string());
  fail_input("cifar10", "{}: found no {} there, nor in cifar-10-batches-bin (expected CIFAR-10's binary version)", dir.string(), name);
}

/// Whole records: a label and an image each.
std::string read_records(const fs::path& path) {
  std::string bytes = io::read_file(path);
  const auto size = static_cast<int64_t>(bytes.size());
  if (size == 0 || size % record != 0)
    fail_input("cifar10", "{}: expected records of {} bytes (a label, then 3 x 32 x 32 pixels), got {} bytes", path.string(), record, size);
  for (int64_t i = 0; i < size / record; ++i)
    if (const auto label = static_cast<uint8_t>(bytes[static_cast<size_t>(i * record)]); label >= classes)
      fail_input("cifar10", "{}: label {} at position {}, expected 0 to {}", path.string(), label, i, classes - 1);
  return bytes;
}

Dataset read_all(const fs::path& dir, const std::vector<std::string>& names) {
  std::vector<std::string> files;
  int64_t count = 0;
  for (const std::string& name : names) {
    files.push_back(read_records(find_file(dir, name)));
    count += static_cast<int64_t>(files.back().size()) / record;
  }
  Dataset all{Tensor::empty({count, colours, side, side}, DType::u8), Tensor::empty({count}, DType::i64)};
  uint8_t* image = all.images.mutable_data<uint8_t>();
  int64_t* label = all.labels.mutable_data<int64_t>();
  for (std::string& file : files) {
    for (size_t at = 0; at < file.size(); at += record, image += pixels) {
      *label++ = static_cast<uint8_t>(file[at]);
      std::copy_n(reinterpret_cast<const uint8_t*>(file.data()) + at + 1, pixels, image);
    }
    std::string().swap(file);
  }
  return all;
}

}  // namespace

Dataset cifar10(const fs::path& dir, Split split) {
  if (split == Split::test) return read_all(dir, {"test_batch.bin"});
  Dataset all = read_all(dir, {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"});
  if (split == Split::train_full) return all;
  if (all.size() <= validation_size)
    fail_input("cifar10", "{}: expected more than {} training images, of which the first {} validate, got {}", dir.string(), validation_size,
               validation_size, all.size());
  return split == Split::validation ? all.slice(0, validation_size) : all.slice(validation_size, all.size());
}

}  // namespace lamina::data
