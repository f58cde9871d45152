#include <lamina/core/error.h>
#include <lamina/core/shape.h>

#include <algorithm>

#include "core/format.h"

namespace lamina {

Shape::Shape(std::initializer_list<int64_t> sizes) : Shape(std::span<const int64_t>(sizes.begin(), sizes.size())) {}

Shape::Shape(std::span<const int64_t> sizes) {
  if (sizes.size() > max_rank) fail("shape", "expected at most {} axes, got {}", max_rank, sizes.size());
  rank_ = static_cast<int>(sizes.size());
  std::copy(sizes.begin(), sizes.end(), sizes_.begin());
  int64_t product = 1;
  for (int64_t size : sizes) {
    if (size < 0) fail("shape", "sizes must be >= 0, got {}", str());
    // A zero elsewhere does not excuse sizes whose product overflows: strides are computed from partial products.
    if (size > 0 && __builtin_mul_overflow(product, size, &product)) fail("shape", "{} has more than 2^63 elements", str());
  }
}

int64_t Shape::numel() const {
  int64_t product = 1;
  for (int64_t size : *this) product *= size;
  return product;
}

int Shape::normalize_axis(int axis, const char* op) const {
  const int positive = axis < 0 ? axis + rank_ : axis;
  if (positive < 0 || positive >= rank_) fail(op, "axis {} is out of range for {} (rank {})", axis, str(), rank_);
  return positive;
}

Shape Shape::with(int axis, int64_t size) const {
  Shape result = *this;
  result.sizes_[static_cast<size_t>(normalize_axis(axis, "shape"))] = size;
  return Shape(std::span<const int64_t>(result.begin(), result.end()));
}

Shape Shape::without(int axis) const {
  const int removed = normalize_axis(axis, "shape");
  Shape result = *this;
  std::copy(begin() + removed + 1, end(), result.sizes_.begin() + removed);
  --result.rank_;
  result.sizes_[static_cast<size_t>(result.rank_)] = 0;
  return result;
}

Shape Shape::insert(int axis, int64_t size) const {
  if (axis < 0) axis += rank_ + 1;
  if (axis < 0 || axis > rank_) fail("shape", "cannot insert an axis at {} into {}", axis, str());
  if (rank_ == max_rank) fail("shape", "{} already has {} axes", str(), max_rank);
  std::array<int64_t, max_rank> sizes{};
  std::copy(begin(), begin() + axis, sizes.begin());
  sizes[static_cast<size_t>(axis)] = size;
  std::copy(begin() + axis, end(), sizes.begin() + axis + 1);
  return Shape(std::span<const int64_t>(sizes.data(), static_cast<size_t>(rank_) + 1));
}

bool Shape::operator==(const Shape& other) const { return std::equal(begin(), end(), other.begin(), other.end()); }

std::string Shape::str() const { return fmt::format("[{}]", fmt::join(begin(), end(), ", ")); }

Shape broadcast(const char* op, const Shape& a, const Shape& b) {
  if (a == b) return a;
  const int rank = std::max(a.rank(), b.rank());
  std::array<int64_t, Shape::max_rank> sizes{};
  for (int back = 1; back <= rank; ++back) {
    const int64_t in_a = back <= a.rank() ? a[-back] : 1;
    const int64_t in_b = back <= b.rank() ? b[-back] : 1;
    if (in_a != in_b && in_a != 1 && in_b != 1) fail(op, "shapes {} and {} do not broadcast (axis {}: {} against {})", a, b, -back, in_a, in_b);
    sizes[static_cast<size_t>(rank - back)] = in_a == 1 ? in_b : in_a;
  }
  return Shape(std::span<const int64_t>(sizes.data(), static_cast<size_t>(rank)));
}

}  // namespace lamina
