#pragma once
// CIFAR-10 (Krizhevsky 2009) in its binary files. Not part of lamina: scripts/fetch_data.sh cifar10 gets it.

#include <filesystem>

#include <lamina/data/dataset.h>

namespace lamina::data {

/// Reads data_batch_1.bin to data_batch_5.bin, or test_batch.bin, from `dir` or from cifar-10-batches-bin in it: images u8 [N, 3, 32, 32] (red,
/// green, blue), labels in 0..9. The parts are those of mnist(): the first 5,000 of the 50,000 training images are `validation`, the others `train`.
/// Files with fewer images are taken, whole records each; a training file that is missing is an error, whatever the split needs of it. Throws
/// InputError, naming the file, for files that are missing, empty or cut short, and for a label above 9, with its position.
Dataset cifar10(const std::filesystem::path& dir, Split split);

}  // namespace lamina::data
