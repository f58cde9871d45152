#include <lamina/autograd/graph.h>
#include <lamina/core/tensor.h>
#include <lamina/ops/elementwise.h>
#include <lamina/ops/shape_ops.h>

#include <limits>

#include "support/allclose.h"
#include "support/make.h"

using namespace lamina;
using namespace lamina::test;

namespace {

/// str(), without the device that it names when that is not the CPU.
std::string text(const Tensor& x) {
  std::string all = x.str();
  if (device().is_cpu()) return all;
  const std::string where = " on " + device().str();
  const size_t at = all.find(where);
  REQUIRE(at != std::string::npos);
  return all.erase(at, where.size());
}

}  // namespace

TEST_CASE("factories fill their tensors", "[core][tensor]") {
  for (const DType dtype : {DType::f32, DType::f64, DType::i64, DType::u8}) {
    CAPTURE(to_string(dtype));
    check_close(zeros({2, 2}, dtype), {0, 0, 0, 0}, exact);
    check_close(ones({3}, dtype), {1, 1, 1}, exact);
    check_close(full({2}, 7, dtype), {7, 7}, exact);
    check_close(arange(4, dtype), {0, 1, 2, 3}, exact);
    CHECK(zeros({0, 5}, dtype).numel() == 0);
    const Tensor three = scalar(3, dtype);
    CHECK(three.rank() == 0);
    CHECK(three.item() == 3);
    CHECK(three.dtype() == dtype);
    CHECK(three.nbytes() == static_cast<int64_t>(size_of(dtype)));
  }
  const Tensor x = tensor<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  CHECK(x.shape() == Shape{2, 3});
  CHECK(x.size(-1) == 3);
  CHECK(element(x, 4) == 5);
  CHECK(x.to_vector<float>() == std::vector<float>{1, 2, 3, 4, 5, 6});
  CHECK(reinterpret_cast<uintptr_t>(x.raw_data()) % 64 == 0);
}

TEST_CASE("wrong use of a tensor is one clear line", "[core][tensor]") {
  CHECK_THROWS_WITH(Tensor().shape(), contains("[tensor] used before it was given a value"));
  CHECK_THROWS_AS(Tensor().backward(), Error);
  CHECK_THROWS_AS(Tensor().set_grad(Tensor()), Error);
  CHECK_THROWS_AS(Tensor().set_requires_grad(), Error);
  CHECK_THROWS_WITH(Tensor().set_requires_grad(false), contains("[set_requires_grad] called on an undefined tensor"));
  CHECK_THROWS_AS(Tensor().item(), Error);
  CHECK_THROWS_WITH(tensor<float>({1, 2, 3}, {2, 2}), contains("[2, 2] needs 4 values, got 3"));
  const Tensor x = zeros({2});
  CHECK_THROWS_WITH(x.data<double>(), contains("asked for f64 data, but the tensor is f32 [2]"));
  CHECK_THROWS_WITH(x.item(), contains("[item] expected a tensor with one element, got [2]"));
  std::vector<float> small(1);
  CHECK_THROWS_WITH(x.copy_to(std::span<float>(small)), contains("[2] has 2 elements, the target 1"));
  Tensor y = zeros({3});
  CHECK_THROWS_WITH(y.copy_(x), contains("[copy_] expected f32 [3], got f32 [2]"));
  CHECK_THROWS_WITH(empty({int64_t{1} << 62}), contains("too large"));
  CHECK_THROWS_WITH(Device::parse("gpu"), contains("expected auto, cpu, cuda"));
  CHECK(Device::parse("cpu") == Device::cpu());
}

TEST_CASE("tensors of integers are not filled with what is none of theirs", "[core][tensor]") {
  CHECK_THROWS_WITH(full({2}, 2.5, DType::i64), "[full] 2.5 is not a value of i64");
  CHECK_THROWS_WITH(full({2}, NAN, DType::i64), "[full] nan is not a value of i64");
  CHECK_THROWS_WITH(full({2}, 1e300, DType::i64), contains("is not a value of i64"));
  CHECK_THROWS_WITH(scalar(-1, DType::u8), "[full] -1 is not a value of u8");
  Tensor x = ones({2}, DType::u8);
  CHECK_THROWS_WITH(x.fill_(256), "[fill_] 256 is not a value of u8");
  check_close(x, {1, 1}, exact);
  check_close(full({1}, -0x1p53, DType::i64), {-0x1p53}, exact);
}

TEST_CASE("handles share, clones do not", "[core][tensor]") {
  Tensor x = tensor<float>({1, 2}, {2});
  const Tensor same = x, copy = x.clone(), bare = x.detach();
  x.fill_(5);
  CHECK(same.is_same(x));
  CHECK_FALSE(bare.is_same(x));
  check_close(same, {5, 5}, exact);
  check_close(bare, {5, 5}, exact);  // detach shares the buffer
  check_close(copy, {1, 2}, exact);
  x.copy_(copy);
  check_close(bare, {1, 2}, exact);
  CHECK(x.to(device()).is_same(x));
}

TEST_CASE("in-place writes stay out of the graph", "[core][tensor]") {
  Tensor x = ones({2}).set_requires_grad();
  Tensor y = x * 2.0;
  CHECK_THROWS_WITH(y.fill_(0), contains("[fill_] the tensor [2] was computed by the graph"));
  CHECK_THROWS_WITH(y.copy_(x.detach()), contains("[copy_]"));
  x.fill_(3);
  check_close(x, {3, 3}, exact);
}

TEST_CASE("copying between overlapping slices moves the old values", "[core][tensor]") {
  const int64_t n = device().is_cpu() ? 3 << 20 : 3 << 12;  // more than one thread copies, or block
  for (const int64_t by : {int64_t{1}, n / 30}) {
    for (const bool up : {true, false}) {
      Tensor x = arange(n);
      Tensor low = slice(x, 0, 0, n - by), high = slice(x, 0, by, n);
      (up ? high : low).copy_(up ? low : high);
      const std::vector<int64_t> values = x.to_vector<int64_t>();
      int64_t wrong = 0;
      for (int64_t i = 0; i < n; ++i) {
        const int64_t moved = up ? i - by : i + by, expected = moved < 0 || moved >= n ? i : moved;
        wrong += values[static_cast<size_t>(i)] != expected;
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("cast truncates toward zero and is differentiable between floats", "[core][tensor]") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor x = tensor<double>({-1.9, 1.9, 0.5, 1e300, nan}, {5});
  const Tensor i = x.cast(DType::i64);
  CHECK(i.to_vector<int64_t>() == std::vector<int64_t>{-1, 1, 0, std::numeric_limits<int64_t>::max(), 0});
  CHECK(x.cast(DType::u8).to_vector<uint8_t>() == std::vector<uint8_t>{0, 1, 0, 255, 0});
  CHECK(x.cast(DType::f64).is_same(x));
  check_close(tensor<uint8_t>({0, 255}, {2}).cast(DType::f32), {0, 255}, exact);
  CHECK(zeros({0, 3}).cast(DType::f64).shape() == Shape{0, 3});

  Tensor leaf = tensor<float>({1, 2}, {2}).set_requires_grad();
  const Tensor wide = leaf.cast(DType::f64);
  CHECK(wide.dtype() == DType::f64);
  (wide * tensor<double>({3, 5}, {2})).backward(tensor<double>({1, 10}, {2}));
  CHECK(leaf.grad().dtype() == DType::f32);
  check_close(leaf.grad(), {3, 50}, exact);
  CHECK_FALSE(leaf.cast(DType::i64).requires_grad());
}

TEST_CASE("tensors print their values", "[core][tensor]") {
  CHECK(text(tensor<float>({1, 2, 3, 4, 5, 6}, {2, 3})) == "f32 [2, 3]\n[[1, 2, 3],\n [4, 5, 6]]");
  CHECK(text(scalar(2.5)) == "f32 [] 2.5");
  CHECK(text(arange(3)) == "i64 [3]\n[0, 1, 2]");
  CHECK(text(tensor<uint8_t>({0, 200}, {2})) == "u8 [2]\n[0, 200]");
  CHECK(text(arange(100)) == "i64 [100]\n[0, 1, 2, ..., 97, 98, 99]");
  CHECK(text(zeros({0})) == "f32 [0]\n[]");
  CHECK(text(zeros({2, 0})) == "f32 [2, 0]\n[[],\n []]");
  CHECK(Tensor().str() == "undefined");
  CHECK(text(tensor<double>({std::numeric_limits<double>::infinity(), -0.1}, {2})) == "f64 [2]\n[inf, -0.1]");
  const std::string cube = text(arange(8).cast(DType::f32));
  CHECK(cube == "f32 [8]\n[0, 1, 2, 3, 4, 5, 6, 7]");
  CHECK(text(reshape(arange(8), {2, 2, 2})) == "i64 [2, 2, 2]\n[[[0, 1],\n  [2, 3]],\n [[4, 5],\n  [6, 7]]]");
}

TEST_CASE("integers beyond 2^53 print and copy exactly", "[core][tensor]") {
  const int64_t large = (int64_t{1} << 53) + 1;
  CHECK(tensor<int64_t>({large}, {1}).to_vector<int64_t>()[0] == large);
  CHECK(text(tensor<int64_t>({large}, {1})) == "i64 [1]\n[9007199254740993]");
}
