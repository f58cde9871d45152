#include <lamina/ops/elementwise.h>
#include <lamina/ops/reduce.h>
#include <lamina/ops/shape_ops.h>

#include <algorithm>

#include "support/allclose.h"
#include "support/random.h"

using namespace lamina;
using namespace lamina::test;

namespace {
Tensor leaf(std::initializer_list<double> values, const Shape& shape) { return tensor<double>(values, shape).set_requires_grad(); }
Tensor counted(const Shape& shape, DType dtype = DType::f32) { return reshape(arange(shape.numel(), dtype), shape); }
}  // namespace

TEST_CASE("reshape and its kin share memory", "[ops][shape]") {
  Tensor x = counted({2, 3, 4});
  CHECK(reshape(x, {6, -1}).shape() == Shape{6, 4});
  CHECK(reshape(x, {-1}).shape() == Shape{24});
  CHECK(reshape(x, Shape{4, 6}).raw_data() == x.raw_data());
  CHECK(flatten(x).shape() == Shape{24});
  CHECK(flatten(x, 1).shape() == Shape{2, 12});
  CHECK(flatten(x, 0, 1).shape() == Shape{6, 4});
  CHECK(flatten(scalar(1)).shape() == Shape{1});
  CHECK(unsqueeze(x, 0).shape() == Shape{1, 2, 3, 4});
  CHECK(unsqueeze(x, -1).shape() == Shape{2, 3, 4, 1});
  CHECK(squeeze(unsqueeze(x, 1), 1).shape() == x.shape());
  CHECK(slice(x, 0, 1).raw_data() == static_cast<const char*>(x.raw_data()) + 12 * 4);
  x.fill_(7);
  check_close(reshape(x, {24}), std::vector<double>(24, 7.0), exact);
  CHECK(reshape(zeros({0, 4}), {2, 0}).shape() == Shape{2, 0});
  CHECK(reshape(zeros({0, 4}), {-1, 4}).shape() == Shape{0, 4});
  CHECK(reshape(ones({1}), Shape{}).rank() == 0);
  CHECK_THROWS_WITH(reshape(x, {5, 5}), contains("[reshape] [2, 3, 4] has 24 elements, [5, 5] has 25"));
  CHECK_THROWS_WITH(reshape(x, {5, -1}), contains("[reshape] no size for -1: [2, 3, 4] has 24 elements, the other sizes hold 5"));
  CHECK_THROWS_WITH(reshape(x, {-1, -1}), contains("only one size may be -1"));
  CHECK_THROWS_WITH(reshape(zeros({0}), {0, -1}), contains("no size for -1"));
  CHECK_THROWS_WITH(reshape(x, {-2, 3}), contains("must be >= 0"));
  CHECK_THROWS_WITH(squeeze(x, 0), contains("[squeeze] axis 0 of [2, 3, 4] has size 2, expected 1"));
  CHECK_THROWS_WITH(flatten(x, 2, 1), contains("[flatten] first axis 2 is after the last, 1"));
}

TEST_CASE("permute moves every element where it belongs", "[ops][shape]") {
  const Shape shape{2, 3, 1, 4};
  for (const DType dtype : {DType::f32, DType::f64, DType::i64, DType::u8}) {
    const Tensor x = counted(shape, dtype);
    std::vector<int> axes{0, 1, 2, 3};
    do {
      const Tensor y = permute(x, axes);
      bool right = true;
      int64_t flat = 0;
      const auto v = values(y);
      for (int64_t a = 0; a < y.size(0); ++a)
        for (int64_t b = 0; b < y.size(1); ++b)
          for (int64_t c = 0; c < y.size(2); ++c)
            for (int64_t d = 0; d < y.size(3); ++d) {
              const int64_t at[4] = {a, b, c, d};
              int64_t source[4];
              for (size_t i = 0; i < 4; ++i) source[axes[i]] = at[i];
              right &= v[static_cast<size_t>(flat++)] == static_cast<double>(((source[0] * 3 + source[1]) * 1 + source[2]) * 4 + source[3]);
            }
      CAPTURE(axes);
      CHECK(right);
    } while (std::next_permutation(axes.begin(), axes.end()));
  }
  const Tensor x = counted({2, 3});
  check_close(transpose(x), {0, 3, 1, 4, 2, 5}, exact);
  CHECK(transpose(counted({2, 3, 4}), 0, 2).shape() == Shape{4, 3, 2});
  CHECK(permute(x, {-1, -2}).shape() == Shape{3, 2});
  CHECK(permute(zeros({0, 3}), {1, 0}).shape() == Shape{3, 0});
  CHECK(permute(scalar(5), {}).item() == 5);
  CHECK_THROWS_WITH(permute(x, {0}), contains("[permute] expected 2 axes for [2, 3], got 1"));
  CHECK_THROWS_WITH(permute(x, {0, 0}), contains("[permute] axis 0 is named twice"));
  CHECK_THROWS_WITH(transpose(x, 0, 2), contains("[transpose] axis 2 is out of range"));
  // A large transposition, odd in both sizes.
  const Tensor large = normal({257, 131}, 1);
  CHECK(same_bits(transpose(transpose(large)), large));
}

TEST_CASE("heads are split by reshape and permute (C10)", "[ops][shape]") {
  const Tensor x = tensor<float>({1, 2, 3, 4}, {2, 2});            // [T, d]
  const Tensor heads = permute(reshape(x, {2, 2, 1}), {1, 0, 2});  // [heads, T, d / heads]
  check_close(select(heads, 0, 0), {1, 3}, exact);
  check_close(select(heads, 0, 1), {2, 4}, exact);
  check_close(reshape(permute(heads, {1, 0, 2}), {2, 2}), {1, 2, 3, 4}, exact);
}

TEST_CASE("expand repeats, its gradient sums", "[ops][shape]") {
  Tensor x = leaf({1, 2, 3}, {3, 1});
  const Tensor y = expand(x, {2, 3, 2});
  check_close(y, {1, 1, 2, 2, 3, 3, 1, 1, 2, 2, 3, 3}, exact);
  y.backward(counted({2, 3, 2}, DType::f64));
  check_close(x.grad(), {14, 22, 30}, exact);
  CHECK(expand(ones({1}), {0}).shape() == Shape{0});
  CHECK(expand(scalar(2), {2, 2}).shape() == Shape{2, 2});
  CHECK_THROWS_WITH(expand(x, {3}), contains("[expand] [3, 1] does not broadcast to [3]"));
  CHECK_THROWS_WITH(expand(x, {2, 2}), contains("[expand] [3, 1] does not broadcast to [2, 2]"));
  CHECK_THROWS_WITH(expand(ones({3}), {1}), contains("does not broadcast to [1]"));
  // A copy, also when nothing is repeated.
  const Tensor plain = ones({2});
  CHECK(expand(plain, {2}).raw_data() != plain.raw_data());
}

TEST_CASE("slices have gradients of the whole shape (E06)", "[ops][shape]") {
  Tensor x = leaf({1, 2, 3, 4, 5}, {5});
  SECTION("one slice") {
    sum(slice(x, 0, 1, 3) * tensor<double>({10, 20}, {2})).backward();
    check_close(x.grad(), {0, 10, 20, 0, 0}, exact);
  }
  SECTION("overlapping slices") {
    (sum(slice(x, 0, 0, 3)) + sum(slice(x, 0, 2, 5))).backward();
    check_close(x.grad(), {1, 1, 2, 1, 1}, exact);
  }
  SECTION("columns") {
    Tensor m = leaf({1, 2, 3, 4, 5, 6}, {2, 3});
    const Tensor y = slice(m, 1, -2, -1);
    check_close(y, {2, 5}, exact);
    CHECK(y.shape() == Shape{2, 1});
    y.backward(tensor<double>({10, 20}, {2, 1}));
    check_close(m.grad(), {0, 10, 0, 0, 20, 0}, exact);
  }
}

TEST_CASE("slice and select follow Python's positions but never clamp", "[ops][shape]") {
  const Tensor x = counted({3, 4});
  check_close(slice(x, 0, 1), {4, 5, 6, 7, 8, 9, 10, 11}, exact);
  check_close(slice(x, 1, -1), {3, 7, 11}, exact);
  CHECK(slice(x, 0, 3).shape() == Shape{0, 4});
  CHECK(slice(x, 1, 2, 2).shape() == Shape{3, 0});
  check_close(select(x, 0, -1), {8, 9, 10, 11}, exact);
  check_close(select(x, 1, 2), {2, 6, 10}, exact);
  CHECK(select(x, 1, 2).shape() == Shape{3});
  CHECK_THROWS_WITH(slice(x, 0, 2, 4), contains("[slice] 2:4 is not a range of axis 0 of [3, 4]"));
  CHECK_THROWS_WITH(slice(x, 0, 4), contains("[slice] 4: is not a range"));
  CHECK_THROWS_WITH(slice(x, 0, 2, 1), contains("2:1"));
  CHECK_THROWS_WITH(slice(x, 0, -4, 1), contains("-4:1"));
  CHECK_THROWS_WITH(slice(x, 2, 0, 1), contains("[slice] axis 2 is out of range"));
  CHECK_THROWS_WITH(select(x, 0, 3), contains("[select] index 3 is out of range for axis 0 of [3, 4]"));
  CHECK_THROWS_WITH(select(x, 0, -4), contains("[select]"));
}

TEST_CASE("concat, stack and split are each other's inverse", "[ops][shape]") {
  for (const DType dtype : {DType::f32, DType::f64, DType::i64, DType::u8}) {
    const Tensor x = counted({3, 5, 2}, dtype);
    for (const int axis : {0, 1, 2, -1}) {
      for (const int64_t size : {1, 2, 3, 7}) {
        const auto parts = split(x, size, axis);
        CHECK(static_cast<int64_t>(parts.size()) == (x.size(axis) + size - 1) / size);
        CHECK(same_bits(concat(parts, axis), x));
      }
    }
  }
  const Tensor a = tensor<float>({1, 2}, {2}), b = tensor<float>({3, 4}, {2});
  check_close(stack({a, b}), {1, 2, 3, 4}, exact);
  check_close(stack({a, b}, 1), {1, 3, 2, 4}, exact);
  check_close(stack({a, b}, -1), {1, 3, 2, 4}, exact);
  CHECK(stack({scalar(1), scalar(2)}).shape() == Shape{2});
  CHECK(concat({zeros({0, 2}), ones({1, 2})}).shape() == Shape{1, 2});
  CHECK(split(zeros({0, 2}), 3).size() == 1);
  CHECK_THROWS_WITH(concat({}), contains("[concat] expected at least one tensor"));
  CHECK_THROWS_WITH(concat({a, ones({1, 2})}), contains("[concat] part 1: expected [2] but for axis 0, got [1, 2]"));
  CHECK_THROWS_WITH(concat({ones({2, 3}), ones({2, 4})}), contains("part 1: expected [2, 3] but for axis 0, got [2, 4]"));
  CHECK_THROWS_WITH(concat({a, a.cast(DType::f64)}), contains("[concat] expected operands of one dtype"));
  CHECK_THROWS_WITH(stack({a, ones({3})}), contains("[stack] part 1: expected [2], got [3]"));
  CHECK_THROWS_WITH(stack({a, b}, 2), contains("[stack] axis 2 is out of range for parts [2] (rank 2 stacked)"));
  CHECK_THROWS_WITH(stack({a, b}, -3), contains("[stack] axis -3 is out of range"));
  CHECK_THROWS_WITH(split(a, 0), contains("[split] expected a size >= 1, got 0"));
}

TEST_CASE("a part used twice gets both gradients", "[ops][shape]") {
  Tensor a = leaf({1, 2}, {2}), b = leaf({3}, {1});
  concat({a, b, a}).backward(tensor<double>({1, 2, 3, 4, 5}, {5}));
  check_close(a.grad(), {5, 7}, exact);
  check_close(b.grad(), {3}, exact);
}

TEST_CASE("an element written after the forward pass shows through a shared view", "[ops][shape]") {
  Tensor x = zeros({4});
  Tensor half = slice(x, 0, 2);
  half.fill_(3);
  check_close(x, {0, 0, 3, 3}, exact);
}
