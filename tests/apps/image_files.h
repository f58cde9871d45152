#pragma once
// Image files for the programs to train on.

#include <filesystem>
#include <string>

#include <lamina/core/random.h>

#include "support/files.h"

namespace support {

/// MNIST's two files of a part ("train", "t10k"): images whose class shows in their brightest rows, and labels to go with them.
inline void put_images(const fs::path& dir, const std::string& part, uint32_t count, uint64_t seed) {
  lamina::Rng rng(seed);
  std::string images = big_endian(2051) + big_endian(count) + big_endian(28) + big_endian(28);
  std::string labels = big_endian(2049) + big_endian(count);
  for (uint32_t i = 0; i < count; ++i) {
    const auto label = static_cast<uint32_t>(rng.below(10));
    labels += static_cast<char>(label);
    for (uint32_t p = 0; p < 784; ++p) images += static_cast<char>(rng.below(60) + (p / 28 / 3 == label ? 150 : 0));
  }
  put(dir / (part + "-images-idx3-ubyte"), images);
  put(dir / (part + "-labels-idx1-ubyte"), labels);
}

}  // namespace support
