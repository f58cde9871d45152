#include <cstdlib>
#include <string>
#include <vector>

#include <fmt/ranges.h>

#include <lamina/data/dataset.h>
#include <lamina/io/file.h>
#include <lamina/io/idx.h>
#include "core/format.h"

namespace lamina::data {
namespace {

namespace fs = std::filesystem;

constexpr int64_t side = 28, classes = 10;

fs::path find_file(const fs::path& dir, const std::string& name) {
  const fs::path zipped = dir / (name + ".gz"), plain = dir / name;
  std::error_code ignored;
  if (fs::exists(plain, ignored)) return plain;
  if (fs::exists(zipped, ignored)) return zipped;
  if (!fs::is_directory(dir, ignored)) fail_input("mnist", "{}: no such directory (expected the MNIST files there)", dir.string());
  fail_input("mnist", "{}: found neither {} nor {}.gz there", dir.string(), name, name);
}

Tensor read_labels(const fs::path& path) {
  const Tensor bytes = io::read_idx_labels(path);
  const uint8_t* values = bytes.data<uint8_t>();
  for (int64_t i = 0; i < bytes.numel(); ++i)
    if (values[i] >= classes) fail_input("mnist", "{}: label {} at position {}, expected 0 to {}", path.string(), values[i], i, classes - 1);
  return bytes.cast(DType::i64);
}

Dataset read_pair(const fs::path& dir, const std::string& prefix) {
  const fs::path image_path = find_file(dir, prefix + "-images-idx3-ubyte"), label_path = find_file(dir, prefix + "-labels-idx1-ubyte");
  Dataset dataset{io::read_idx_images(image_path), read_labels(label_path)};
  if (dataset.images.size(0) != dataset.labels.size(0))
    fail_input("mnist", "{}: holds {} labels, but {} holds {} images", label_path.string(), dataset.labels.size(0), image_path.string(),
               dataset.images.size(0));
  if (dataset.images.size(1) != side || dataset.images.size(2) != side)
    fail_input("mnist", "{}: images: expected {} x {}, got {} x {}", image_path.string(), side, side, dataset.images.size(1), dataset.images.size(2));
  return dataset;
}

}  // namespace

Dataset mnist(const fs::path& dir, Split split) {
  Dataset all = read_pair(dir, split == Split::test ? "t10k" : "train");
  if (split == Split::test || split == Split::train_full) return all;
  if (all.size() <= validation_size)
    fail_input("mnist", "{}: expected more than {} training images, of which the first {} validate, got {}", dir.string(), validation_size,
               validation_size, all.size());
  return split == Split::validation ? all.slice(0, validation_size) : all.slice(validation_size, all.size());
}

fs::path dataset_dir(std::string_view name) {
  std::vector<std::string> tried;
  const auto found = [&](const fs::path& data) {
    const fs::path dir = data / name;
    tried.push_back(dir.string());
    std::error_code ignored;
    return fs::is_directory(dir, ignored) ? dir : fs::path();
  };
  const char* variable = std::getenv("LAMINA_DATA");
  if (variable != nullptr && *variable != '\0') {
    if (const fs::path dir = found(variable); !dir.empty()) return dir;
  } else {
    std::vector<fs::path> places = {LAMINA_SOURCE_DATA_DIR, LAMINA_INSTALL_DATA_DIR};
    // An installed program may have been moved with its prefix.
    if (const fs::path program = io::program_path(); !program.empty()) places.push_back(program.parent_path().parent_path() / "share/lamina");
    for (const fs::path& data : places)
      if (const fs::path dir = found(data); !dir.empty()) return dir;
  }
  fail_input(name, "found no directory {} (set LAMINA_DATA to the directory that holds {}; scripts/fetch_data.sh {} gets it)",
             fmt::join(tried, " or "), name, name);
}

}  // namespace lamina::data
