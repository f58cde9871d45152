#pragma once
// Data sets that fit in memory: MNIST, and whatever comes in the same files.

#include <cstdint>
#include <filesystem>
#include <string_view>

#include <lamina/core/tensor.h>

namespace lamina::data {

/// N examples with class labels.
struct Dataset {
  Tensor images;  // [N, ...], u8 (as MNIST comes) or f32 or f64
  Tensor labels;  // i64 [N]

  int64_t size() const { return labels.size(0); }
  /// Examples begin..end-1; shares memory. Throws InputError unless 0 <= begin < end <= size().
  Dataset slice(int64_t begin, int64_t end) const;
  /// The first `count` examples, or all where there are fewer. Throws InputError for count < 1.
  Dataset limit(int64_t count) const;
};

/// Throws InputError unless images are u8, f32 or f64 [N, ...], labels i64 [N], and N >= 1.
void check(const Dataset& dataset);

/// CRC-32 over the images' and then the labels' bytes: whether two data sets of the same shape are the same.
uint32_t checksum(const Dataset& dataset);

/// The MNIST files hold 60,000 training and 10,000 test images. The first 5,000 training images are `validation` and the others are `train`;
/// `train_full` is both.
enum class Split { train, validation, train_full, test };

inline constexpr int64_t validation_size = 5000;

/// Reads train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte or t10k-labels-idx1-ubyte, with or without ".gz", from `dir`:
/// images u8 [N, 28, 28], labels in 0..9. Fashion-MNIST has files of the same names. Any N is taken that the split leaves something of.
/// Throws InputError, naming the file, for files that are missing, damaged, swapped, of different counts or of another image size,
/// and for a label above 9, with its position.
Dataset mnist(const std::filesystem::path& dir, Split split);

/// The directory "mnist" (or "fashion", "cifar10") of the data directory: $LAMINA_DATA if that is set, else data/ in lamina's source tree, else
/// share/lamina under the install prefix, else share/lamina beside the folder of the running program. Throws InputError naming the places looked at
/// when there is none.
std::filesystem::path dataset_dir(std::string_view name = "mnist");

}  // namespace lamina::data
