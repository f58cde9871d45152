#include <lamina/nn/module.h>

#include <cmath>

#include "support/allclose.h"
#include "support/catch.h"

using namespace lamina;
using namespace lamina::test;
using nn::Buffer;
using nn::Parameter;

TEST_CASE("an absent parameter converts to an undefined tensor") {
  const Parameter none;
  CHECK_FALSE(none.defined());
  CHECK_FALSE(none.ready());
  const Tensor& tensor = none;
  CHECK_FALSE(tensor.defined());
}

TEST_CASE("constants hold at once, drawn values after the draw") {
  Parameter gain = on_device(Parameter({3}, nn::init::constant(2.5)));
  CHECK(gain.ready());
  CHECK(gain.value().requires_grad());
  check_close(gain.value(), {2.5, 2.5, 2.5}, exact);

  Parameter weight = on_device(Parameter({1000, 784}, nn::init::uniform(0.1)));
  CHECK_FALSE(weight.ready());
  CHECK(std::isnan(element(weight.tensor(), 5)));
  CHECK_THROWS_WITH(weight.value(), "[parameter] used before init(seed) or load_state_dict: shape [1000, 784]");
  weight.draw(Rng(1));
  CHECK(weight.ready());
  CHECK(std::abs(element(weight.value(), 5)) <= static_cast<double>(0.1f));
  CHECK_THROWS_WITH(Parameter({2}, nn::init::zeros(), DType::i64), contains("[parameter] expected f32 or f64, got i64"));
}

TEST_CASE("copies of a parameter are independent and keep whether it is frozen") {
  Parameter a = on_device(Parameter({2}, nn::init::ones()));
  a.tensor().set_grad(ones({2}));
  a.freeze();
  Parameter b(a);
  CHECK(b.frozen());
  CHECK_FALSE(b.grad().defined());
  b.freeze(false);
  CHECK(a.frozen());
  b.tensor().fill_(7);
  check_close(a.value(), {1, 1}, exact);

  Parameter c = on_device(Parameter({3}, nn::init::zeros()));
  c = b;
  b.tensor().fill_(8);
  check_close(c.value(), {7, 7}, exact);
  CHECK_FALSE(Parameter(Parameter({2}, nn::init::normal(1))).ready());

  const Tensor handle = c.value();
  const Parameter moved = std::move(c);
  CHECK(moved.value().is_same(handle));
}

TEST_CASE("tied parameters are one tensor, also in their readiness") {
  Parameter a = on_device(Parameter({2, 3}, nn::init::normal(1))), b = on_device(Parameter({2, 3}, nn::init::normal(1))),
            other({3, 2}, nn::init::zeros()), none;
  b.tie(a);
  CHECK_FALSE(b.ready());
  a.draw(Rng(4));
  CHECK(b.ready());
  CHECK(b.value().is_same(a.value()));
  a.cast(DType::f64);
  CHECK(b.value().dtype() == DType::f64);
  CHECK_THROWS_WITH(b.tie(other), "[parameter] tie: expected [2, 3], got [3, 2]");
  CHECK_THROWS_WITH(b.tie(none), contains("absent"));
}

TEST_CASE("set checks the shape and converts the dtype") {
  Parameter p = on_device(Parameter({2}, nn::init::normal(1)));
  p.set(tensor({1.5, -2.0}, {2}));
  CHECK(p.ready());
  check_close(p.value(), {1.5, -2}, exact);
  CHECK(p.value().requires_grad());
  CHECK_THROWS_WITH(p.set(zeros({3})), "[parameter] set: expected [2], got [3]");
  CHECK_THROWS_WITH(p.set(zeros({2}, DType::i64)), "[parameter] set: expected f32 or f64, got i64");
  CHECK_THROWS_WITH(Parameter().set(zeros({2})), contains("absent"));
}

TEST_CASE("cast swaps the data inside the same tensor and clears the gradient") {
  Parameter p = on_device(Parameter({2}, nn::init::constant(0.1)));
  const Tensor handle = p.value();
  p.tensor().set_grad(ones({2}));
  p.cast(DType::f32);
  CHECK(p.grad().defined());  // nothing changed
  p.cast(DType::f64);
  CHECK(handle.is_same(p.value()));
  CHECK(handle.dtype() == DType::f64);
  CHECK(handle.requires_grad());
  CHECK_FALSE(p.grad().defined());
  check_close(handle, {static_cast<double>(0.1f), static_cast<double>(0.1f)}, exact);
  CHECK_THROWS_WITH(p.cast(DType::u8), contains("got u8"));
}

TEST_CASE("buffers reset, copy deeply, and cast only floats") {
  Buffer mean(ones({2}));
  mean.tensor().fill_(5);
  const Buffer copy(mean);
  mean.reset();
  check_close(mean.tensor(), {1, 1}, exact);
  check_close(copy.tensor(), {5, 5}, exact);
  mean.cast(DType::f64);
  mean.tensor().fill_(9);
  mean.reset();
  check_close(mean.tensor(), {1, 1}, exact);
  CHECK(mean.tensor().dtype() == DType::f64);

  Buffer count(scalar(3, DType::i64));
  count.cast(DType::f64);
  CHECK(count.tensor().dtype() == DType::i64);
  Buffer none;
  none.reset();
  none.cast(DType::f64);
  CHECK_FALSE(none.defined());
}

TEST_CASE("a stream buffer holds the position of an Rng") {
  Buffer stream = Buffer::stream();
  CHECK_FALSE(stream.ready());
  CHECK_THROWS_WITH(stream.rng(), "[buffer] random stream used before init(seed) or load_state_dict");
  Rng rng(0xFEDCBA9876543210u);
  rng.counter = 12;
  stream.set_rng(rng);
  stream.cast(DType::f64);
  const Buffer copy(stream);
  CHECK(copy.rng().key == 0xFEDCBA9876543210u);
  CHECK(copy.rng().counter == 12);
  CHECK(copy.is_stream());
  CHECK_THROWS_WITH(Buffer(zeros({2})).rng(), contains("not a random stream"));
}
