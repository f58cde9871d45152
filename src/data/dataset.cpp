#include <lamina/data/dataset.h>

#include <zlib.h>

#include <algorithm>

#include "core/format.h"
#include "core/tensor_impl.h"

namespace lamina::data {
namespace {

Tensor rows(const Tensor& tensor, int64_t begin, int64_t end) {
  const int64_t row_bytes = tensor.nbytes() / tensor.size(0);
  return lamina::detail::view(tensor, tensor.shape().with(0, end - begin), begin * row_bytes);
}

}  // namespace

Dataset Dataset::slice(int64_t begin, int64_t end) const {
  if (begin < 0 || begin >= end || end > size()) fail_input("dataset", "slice: expected 0 <= begin < end <= {}, got {} and {}", size(), begin, end);
  return {rows(images, begin, end), rows(labels, begin, end)};
}

Dataset Dataset::limit(int64_t count) const {
  if (count < 1) fail_input("dataset", "limit: expected at least 1 example, got {}", count);
  return slice(0, std::min(count, size()));
}

void check(const Dataset& dataset) {
  if (!dataset.images.defined() || !dataset.labels.defined()) fail_input("dataset", "expected images and labels, got an undefined tensor");
  const Tensor &images = dataset.images, &labels = dataset.labels;
  if (images.rank() < 1 || images.dtype() == DType::i64)
    fail_input("dataset", "images: expected u8, f32 or f64 [N, ...], got {} {}", images.dtype(), images.shape());
  if (labels.rank() != 1 || labels.dtype() != DType::i64)
    fail_input("dataset", "labels: expected i64 [N], got {} {}", labels.dtype(), labels.shape());
  if (images.size(0) != labels.size(0)) fail_input("dataset", "expected as many images as labels, got {} and {}", images.size(0), labels.size(0));
  if (labels.size(0) == 0) fail_input("dataset", "expected at least one example, got none");
}

uint32_t checksum(const Dataset& dataset) {
  uLong crc = 0;
  for (const Tensor* tensor : {&dataset.images, &dataset.labels})
    crc = crc32_z(crc, static_cast<const Bytef*>(tensor->raw_data()), static_cast<size_t>(tensor->nbytes()));
  return static_cast<uint32_t>(crc);
}

}  // namespace lamina::data
