#include <lamina/core/parallel.h>
#include <lamina/ops/elementwise.h>
#include <lamina/ops/reduce.h>
#include <lamina/ops/shape_ops.h>

#include "support/allclose.h"
#include "support/random.h"

using namespace lamina;
using namespace lamina::test;

namespace {
Tensor leaf(std::initializer_list<double> values, const Shape& shape) { return tensor<double>(values, shape).set_requires_grad(); }
Tensor ids(std::initializer_list<int64_t> values, const Shape& shape) { return tensor<int64_t>(values, shape); }

/// CHECKs that an index out of range is named: by the op on the CPU, at the next read on a GPU (src/kernels/cuda/fault.h).
template <class Op>
void check_out_of_range(Op&& op, const std::string& cpu, const std::string& gpu) {
  CHECK_THROWS_WITH(values(op()), contains(device().is_cpu() ? cpu : gpu));
}

}  // namespace

TEST_CASE("repeated indices add up in the gradient (E07)", "[ops][index]") {
  SECTION("gather") {
    Tensor x = leaf({0.1}, {1});
    const Tensor y = gather(x, 0, ids({0, 0}, {2}));
    check_close(y, {0.1, 0.1}, exact);
    y.backward(tensor<double>({0.2, 0.3}, {2}));
    check_close(x.grad(), {0.5}, exact);
  }
  SECTION("embedding") {
    Tensor table = leaf({1, 2, 3, 4, 5, 6}, {3, 2});
    const Tensor y = embedding(ids({1, 1, 2}, {3}), table);
    check_close(y, {3, 4, 3, 4, 5, 6}, exact);
    y.backward(tensor<double>({1, 2, 10, 20, 5, 6}, {3, 2}));
    check_close(table.grad(), {0, 0, 11, 22, 5, 6}, exact);
  }
  SECTION("index_select along the last axis") {
    Tensor x = leaf({1, 2, 3, 4}, {2, 2});
    const Tensor y = index_select(x, 1, ids({1, 1, 0}, {3}));
    check_close(y, {2, 2, 1, 4, 4, 3}, exact);
    y.backward(tensor<double>({1, 2, 3, 10, 20, 30}, {2, 3}));
    check_close(x.grad(), {3, 3, 30, 30}, exact);
  }
}

TEST_CASE("embedding gradients have the same bits for every thread count", "[ops][index]") {
  const int threads = num_threads();
  const Tensor positions = integers({40, 50}, 1, 0, 30), dy = normal({40, 50, 17}, 2);
  Tensor first;
  for (const int count : {1, 2, 3, 8}) {
    set_num_threads(count);
    Tensor table = zeros({30, 17}).set_requires_grad();
    embedding(positions, table).backward(dy);
    if (!first.defined()) first = table.grad();
    CHECK(same_bits(table.grad(), first));
  }
  set_num_threads(threads);
  // And they are the sums: against one_hot^T dy.
  std::vector<double> expected(30 * 17);
  const auto rows = positions.to_vector<int64_t>();
  const auto added = values(dy);
  for (size_t i = 0; i < 2000; ++i)
    for (size_t c = 0; c < 17; ++c) expected[static_cast<size_t>(rows[i]) * 17 + c] += added[i * 17 + c];
  check_close(first, expected, f32_sum);
}

TEST_CASE("embedding leaves the padding row without gradient", "[ops][index]") {
  Tensor table = leaf({1, 2, 3, 4, 5, 6}, {3, 2});
  const Tensor y = embedding(ids({1, 0, 1, 2}, {2, 2}), table, /*padding=*/1);
  CHECK(y.shape() == Shape{2, 2, 2});
  check_close(y, {3, 4, 1, 2, 3, 4, 5, 6}, exact);
  sum(y * 3.0).backward();
  check_close(table.grad(), {3, 3, 0, 0, 3, 3}, exact);
  CHECK_THROWS_WITH(embedding(ids({0}, {1}), table, 3), contains("[embedding] padding: expected -1 or a row of the table [3, 2], got 3"));
}

TEST_CASE("gather is PyTorch's", "[ops][index]") {
  const Tensor x = tensor<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  check_close(gather(x, 1, ids({0, 0, 2, 1}, {2, 2})), {1, 1, 6, 5}, exact);
  check_close(gather(x, 0, ids({1, 0, 1}, {1, 3})), {4, 2, 6}, exact);
  check_close(gather(x, 0, ids({1, 0, 0, 1}, {2, 2})), {4, 2, 1, 5}, exact);  // index smaller than x along the other axis
  check_close(gather(x.cast(DType::u8), 1, ids({2, 1}, {2, 1})), {3, 5}, exact);
  CHECK(gather(x, 1, zeros({2, 0}, DType::i64)).shape() == Shape{2, 0});
  CHECK_THROWS_WITH(gather(x, 1, ids({0}, {1})), contains("[gather] index: expected rank 2 as x, got [1] (x is [2, 3])"));
  CHECK_THROWS_WITH(gather(x, 1, ids({0, 0, 0}, {3, 1})), contains("[gather] index: [3, 1] is larger than x, [2, 3], along axis 0"));
  check_out_of_range(
      [&] {
        return gather(x, 1, ids({0, 3}, {2, 1}));
      },
      "[gather] index: 3 at position [1, 0] is out of range 0 to 2 (axis 1 of [2, 3])", "[gather] index: 3 at position 1 is out of range 0 to 2");
}

TEST_CASE("indices out of range are named with their position", "[ops][index]") {
  const Tensor table = ones({3, 2});
  check_out_of_range(
      [&] {
        return embedding(ids({0, 1, 3, 0}, {2, 2}), table);
      },
      "[embedding] ids: 3 at position [1, 0] is out of range 0 to 2 (the table is [3, 2])",
      "[embedding] ids: 3 at position 2 is out of range 0 to 2");
  check_out_of_range([&] { return embedding(ids({-1}, {1}), table); }, "-1 at position [0]", "-1 at position 0");
  check_out_of_range(
      [&] {
        return index_select(table, 1, ids({0, 2}, {2}));
      },
      "[index_select] index: 2 at position [1] is out of range 0 to 1 (axis 1 of [3, 2])",
      "[index_select] index: 2 at position 1 is out of range 0 to 1");
  check_out_of_range(
      [&] {
        return one_hot(ids({0, 4}, {2}), 4);
      },
      "[one_hot] index: 4 at position [1] is out of range 0 to 3 (4 classes)", "[one_hot] index: 4 at position 1 is out of range 0 to 3");
  CHECK_THROWS_WITH(embedding(ones({2}), table), contains("[embedding] ids: expected i64, got f32 [2]"));
  CHECK_THROWS_WITH(embedding(ids({0}, {1}), ones({3})), contains("[embedding] table: expected [V, C], got [3]"));
  CHECK_THROWS_WITH(index_select(table, 0, ids({0}, {1, 1})), contains("[index_select] index: expected one axis, got [1, 1]"));
  check_out_of_range([&] { return embedding(ids({0}, {}), ones({0, 2})); }, "out of range", "out of range");
}

// [cpu]: of several wrong ones a GPU names any.
TEST_CASE("the first of many indices out of range is named, found by several threads", "[ops][index][cpu]") {
  const Tensor table = ones({3, 2});
  CHECK_THROWS_WITH(embedding(ids({0, 1, 3, -1}, {2, 2}), table), contains("3 at position [1, 0]"));
  Tensor many = zeros({300000}, DType::i64);
  for (const int64_t bad : {299999, 250000, 123457}) slice(many, 0, bad, bad + 1).fill_(7);
  CHECK_THROWS_WITH(embedding(many, table), contains("7 at position [123457]"));
}

TEST_CASE("index ops carry every dtype and empty tensors", "[ops][index]") {
  for (const DType dtype : {DType::f32, DType::f64, DType::i64, DType::u8}) {
    const Tensor x = reshape(arange(12, dtype), {3, 4});
    check_close(index_select(x, 0, ids({2, 0}, {2})), {8, 9, 10, 11, 0, 1, 2, 3}, exact);
    check_close(index_select(x, -1, ids({3, 3}, {2})), {3, 3, 7, 7, 11, 11}, exact);
    check_close(embedding(ids({2}, {}), x), {8, 9, 10, 11}, exact);
  }
  CHECK(embedding(zeros({0, 2}, DType::i64), ones({3, 4})).shape() == Shape{0, 2, 4});
  Tensor table = ones({3, 4}).set_requires_grad();
  sum(embedding(zeros({0}, DType::i64), table)).backward();
  check_close(table.grad(), zeros({3, 4}), exact);
  CHECK(index_select(ones({3, 0}), 0, ids({1, 1}, {2})).shape() == Shape{2, 0});
  CHECK(index_select(ones({3, 2}), 1, zeros({0}, DType::i64)).shape() == Shape{3, 0});
}

TEST_CASE("one_hot", "[ops][index]") {
  const Tensor y = one_hot(ids({1, 0, 2, 1}, {2, 2}), 3);
  CHECK(y.shape() == Shape{2, 2, 3});
  CHECK(y.dtype() == DType::f32);
  check_close(y, {0, 1, 0, 1, 0, 0, 0, 0, 1, 0, 1, 0}, exact);
  CHECK(one_hot(ids({1}, {1}), 2, DType::u8).to_vector<uint8_t>() == std::vector<uint8_t>{0, 1});
  CHECK(one_hot(ids({1}, {}), 2, DType::f64).shape() == Shape{2});
  CHECK(one_hot(zeros({0}, DType::i64), 4).shape() == Shape{0, 4});
  CHECK_THROWS_WITH(one_hot(ones({2}), 4), contains("[one_hot] index: expected i64"));
}
