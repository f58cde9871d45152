#pragma once
// The IDX format of the MNIST data (http://yann.lecun.com/exdb/mnist): a big-endian magic number (0, 0, element type, number of dimensions), the
// dimensions as big-endian 32-bit numbers, then the elements row-major. Files may be gzipped.

#include <filesystem>

#include <lamina/core/tensor.h>

namespace lamina::io {

/// Images: u8 [N, rows, columns], magic number 2051. Labels: u8 [N], magic number 2049.
/// Throws InputError "[idx] PATH: ..." for another magic number, a dimension of 0, or a body of another size than the header says, and for what
/// GzipReader refuses. Sizes are compared with the file before memory is allocated.
Tensor read_idx_images(const std::filesystem::path& path);
Tensor read_idx_labels(const std::filesystem::path& path);

}  // namespace lamina::io
