#include <lamina/core/error.h>
#include <lamina/core/shape.h>

#include <array>

#include "support/catch.h"

using namespace lamina;

TEST_CASE("a shape knows its sizes", "[core][shape]") {
  const Shape shape{2, 3, 4};
  CHECK(shape.rank() == 3);
  CHECK(shape.numel() == 24);
  CHECK(shape[0] == 2);
  CHECK(shape[-1] == 4);
  CHECK(shape.size(-3) == 2);
  CHECK(shape.str() == "[2, 3, 4]");
  CHECK(Shape{}.str() == "[]");
  CHECK(Shape{}.numel() == 1);
  CHECK(Shape{3, 0}.numel() == 0);
  CHECK(Shape{2, 3} == Shape{2, 3});
  CHECK(Shape{2, 3} != Shape{3, 2});
  CHECK(Shape{2} != Shape{2, 1});
}

TEST_CASE("shapes refuse what cannot be", "[core][shape]") {
  CHECK_THROWS_WITH((Shape{1, 2, 3, 4, 5, 6, 7}), contains("[shape] expected at most 6 axes, got 7"));
  CHECK_THROWS_WITH((Shape{2, -1}), contains("[2, -1]"));
  const int64_t huge = int64_t{1} << 40;
  CHECK_THROWS_WITH((Shape{huge, huge}), contains("more than 2^63 elements"));
  // An axis of size 0 does not excuse an overflow: strides are products of some of the sizes.
  CHECK_THROWS_WITH((Shape{0, huge, huge}), contains("more than 2^63 elements"));
  CHECK_THROWS_WITH((Shape{2, 3}[2]), contains("axis 2 is out of range for [2, 3]"));
  CHECK_THROWS_WITH((Shape{2, 3}[-3]), contains("axis -3 is out of range"));
  CHECK_THROWS_AS(Shape{}[0], Error);
}

TEST_CASE("shapes are changed by copies", "[core][shape]") {
  const Shape shape{2, 3, 4};
  CHECK(shape.with(1, 7) == Shape{2, 7, 4});
  CHECK(shape.with(-1, 0) == Shape{2, 3, 0});
  CHECK(shape.without(0) == Shape{3, 4});
  CHECK(shape.without(-1) == Shape{2, 3});
  CHECK(shape.insert(0, 5) == Shape{5, 2, 3, 4});
  CHECK(shape.insert(3, 5) == Shape{2, 3, 4, 5});
  CHECK(shape.insert(-1, 5) == Shape{2, 3, 4, 5});
  CHECK(shape.insert(-2, 5) == Shape{2, 3, 5, 4});
  CHECK(Shape{}.insert(0, 1) == Shape{1});
  CHECK_THROWS_WITH(shape.insert(4, 1), contains("cannot insert an axis at 4 into [2, 3, 4]"));
  CHECK_THROWS_WITH((Shape{1, 1, 1, 1, 1, 1}.insert(0, 1)), contains("already has 6 axes"));
  const std::array<int64_t, 2> sizes{4, 5};
  CHECK(Shape(std::span<const int64_t>(sizes)) == Shape{4, 5});
}

TEST_CASE("shapes broadcast as in NumPy", "[core][shape]") {
  CHECK(broadcast("op", {3, 4}, {3, 4}) == Shape{3, 4});
  CHECK(broadcast("op", {3, 4}, {4}) == Shape{3, 4});
  CHECK(broadcast("op", {3, 1}, {1, 2}) == Shape{3, 2});
  CHECK(broadcast("op", {3, 1, 4}, {2, 1, 5, 1}) == Shape{2, 3, 5, 4});
  CHECK(broadcast("op", {}, {3, 4}) == Shape{3, 4});
  CHECK(broadcast("op", {1}, {0}) == Shape{0});
  CHECK(broadcast("op", {0, 1}, {1, 5}) == Shape{0, 5});
  CHECK_THROWS_WITH(broadcast("add", {3, 4}, {3}), contains("[add] shapes [3, 4] and [3] do not broadcast (axis -1: 4 against 3)"));
  CHECK_THROWS_WITH(broadcast("add", {0}, {2}), contains("do not broadcast"));
}
