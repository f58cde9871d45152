#pragma once
// Shape of a tensor: 0 to 6 sizes, each >= 0. Rank 0 is a scalar (one element); a size of 0 makes the tensor empty and is legal everywhere.

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

namespace lamina {

class Shape {
 public:
  static constexpr int max_rank = 6;

  Shape() = default;
  /// Throws Error for more than 6 sizes, a negative size, or a product that does not fit in 63 bits.
  Shape(std::initializer_list<int64_t> sizes);
  explicit Shape(std::span<const int64_t> sizes);

  int rank() const { return rank_; }
  int64_t numel() const;

  /// Size along `axis`; negative axes count from the end. Throws Error when out of range.
  int64_t size(int axis) const { return sizes_[static_cast<size_t>(normalize_axis(axis, "shape"))]; }
  int64_t operator[](int axis) const { return size(axis); }

  /// The axis as 0..rank-1; `op` names the caller in the error.
  int normalize_axis(int axis, const char* op) const;

  /// Copies with one size changed, removed, or inserted (before `axis`, which may equal the rank).
  Shape with(int axis, int64_t size) const;
  Shape without(int axis) const;
  Shape insert(int axis, int64_t size) const;

  const int64_t* begin() const { return sizes_.data(); }
  const int64_t* end() const { return sizes_.data() + rank_; }

  bool operator==(const Shape& other) const;

  /// "[4, 784]"; "[]" for a scalar.
  std::string str() const;

 private:
  std::array<int64_t, max_rank> sizes_{};
  int rank_ = 0;
};

/// The NumPy broadcast of two shapes. Throws Error naming `op` and both shapes when they do not broadcast.
Shape broadcast(const char* op, const Shape& a, const Shape& b);

}  // namespace lamina
