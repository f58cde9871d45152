#include <lamina/autograd/gradcheck.h>
#include <lamina/autograd/graph.h>
#include <lamina/ops/elementwise.h>
#include <lamina/ops/matmul.h>
#include <lamina/ops/reduce.h>

#include <cmath>

#include "support/allclose.h"
#include "support/random.h"

using namespace lamina;
using namespace lamina::test;

namespace {

using Function = std::function<Tensor(const std::vector<Tensor>&)>;

/// x^2 with a backward of one's choice.
Function square_with(autograd::BackwardFn backward) {
  return [backward](const std::vector<Tensor>& in) {
    Tensor y;
    {
      const NoGrad guard;
      y = square(in[0]);
    }
    return autograd::record("square_with", {in[0]}, y, autograd::save({in[0]}), backward);
  };
}

Tensor input() { return away_from_zero({3, 4}, 1, 0.2, 2, DType::f64); }

}  // namespace

TEST_CASE("gradcheck accepts a right gradient", "[gradcheck]") {
  const auto result = gradcheck(square_with([](autograd::Backward& b) { b.give(0, b.dy() * b.saved(0) * 2.0); }), {input()});
  CHECK(result.ok);
  CHECK(static_cast<bool>(result));
  CHECK(result.message.empty());
  CHECK(result.worst_error < 1e-8);
  CHECK(result.worst_error > 0);
}

TEST_CASE("gradcheck refuses planted errors", "[gradcheck]") {
  SECTION("a factor that is off by 1e-5") {
    const auto result = gradcheck(square_with([](autograd::Backward& b) { b.give(0, b.dy() * b.saved(0) * 2.00002); }), {input()});
    CHECK_FALSE(result.ok);
    CHECK_THAT(result.message, contains("input 0 [3, 4] element") && contains("numeric") && contains("analytic") && contains("relative error"));
    CHECK(std::abs(result.worst_error - 1e-5) < 1e-7);
  }
  SECTION("elements that are not numbers among wrong ones") {
    const auto result = gradcheck(square_with([](autograd::Backward& b) {
                                    Tensor dx = b.dy() * b.saved(0) * 3.0;
                                    for (int64_t i = 0; i < 12; i += 2) set_element(dx, i, NAN);
                                    b.give(0, dx);
                                  }),
                                  {input()});
    CHECK_FALSE(result.ok);
    CHECK(std::isinf(result.worst_error));
    CHECK_THAT(result.message, contains("analytic nan"));
    CHECK_THAT(result.message, !contains("element 1:"));  // the worst five are named
  }
  SECTION("one element of twelve") {
    const auto result = gradcheck(square_with([](autograd::Backward& b) {
                                    Tensor dx = b.dy() * b.saved(0) * 2.0;
                                    set_element(dx, 7, -element(dx, 7));
                                    b.give(0, dx);
                                  }),
                                  {input()});
    CHECK_FALSE(result.ok);
    CHECK_THAT(result.message, contains("element 7"));
  }
  SECTION("NaN") {
    CHECK_FALSE(gradcheck(square_with([](autograd::Backward& b) { b.give(0, b.dy() * std::nan("")); }), {input()}).ok);
  }
  SECTION("no gradient at all") {
    CHECK_FALSE(gradcheck(square_with([](autograd::Backward&) {}), {input()}).ok);
  }
  SECTION("no graph") {
    CHECK_FALSE(gradcheck([](const std::vector<Tensor>& in) { return square(in[0].detach()); }, {input()}).ok);
  }
  SECTION("a swap that a plain sum as the loss would not see") {
    // y = x^T; its backward forgets the transposition, which a cotangent of ones hides.
    const auto result = gradcheck(
        [](const std::vector<Tensor>& in) {
          Tensor y;
          {
            const NoGrad guard;
            y = matmul(in[0], tensor<double>({1, 0, 0, 1}, {2, 2}), {.transpose_a = true});
          }
          return autograd::record("transposed", {in[0]}, y, {}, [](autograd::Backward& b) { b.give(0, b.dy()); });
        },
        {normal({2, 2}, 2, DType::f64)});
    CHECK_FALSE(result.ok);
  }
}

TEST_CASE("gradcheck refuses a zero gradient, which tests nothing, unless told to expect it", "[gradcheck]") {
  const Function constant = [](const std::vector<Tensor>& in) { return floor(in[0]); };
  const auto result = gradcheck(constant, {input()});
  CHECK_FALSE(result.ok);
  CHECK_THAT(result.message, contains("the numeric gradient is zero"));
  CHECK(gradcheck(constant, {input()}, {.expect_zero = true}).ok);
}

TEST_CASE("gradcheck runs the graph twice and switches inputs off in turn", "[gradcheck]") {
  SECTION("a backward that spoils its saved state") {
    auto runs = std::make_shared<int>(0);
    const auto result =
        gradcheck(square_with([runs](autograd::Backward& b) { b.give(0, b.dy() * b.saved(0) * (++*runs == 1 ? 2.0 : 4.0)); }), {input()});
    CHECK_FALSE(result.ok);
    CHECK_THAT(result.message, contains("two backward passes over one graph"));
  }
  SECTION("a backward that forgets which input needs what") {
    const Function product = [](const std::vector<Tensor>& in) {
      Tensor y;
      {
        const NoGrad guard;
        y = in[0] * in[1];
      }
      return autograd::record("product", {in[0], in[1]}, y, autograd::save({in[0], in[1]}), [](autograd::Backward& b) {
        b.give(0, b.dy() * b.saved(1));
        if (b.needs(0)) b.give(1, b.dy() * b.saved(0));
      });
    };
    const auto result = gradcheck(product, {input(), away_from_zero({3, 4}, 2, 0.2, 2, DType::f64)});
    CHECK_FALSE(result.ok);
    CHECK_THAT(result.message, contains("input 1: its gradient changes when input 0 needs none"));
  }
}

TEST_CASE("gradcheck samples large inputs and leaves the caller's tensors alone", "[gradcheck]") {
  int calls = 0;
  const Tensor large = normal({50, 50}, 3, DType::f64), before = large.clone();
  const auto result = gradcheck(
      [&](const std::vector<Tensor>& in) {
        ++calls;
        return sum(in[0] * in[0] * in[0], {1});
      },
      {large}, {.max_coordinates = 20});
  CHECK(result.ok);
  CHECK(calls < 60);
  CHECK(same_bits(large, before));
  CHECK_FALSE(large.requires_grad());
  CHECK_FALSE(large.grad().defined());
}

TEST_CASE("gradcheck works where gradients are recorded, in f64 only", "[gradcheck]") {
  {
    const NoGrad no_grad;
    CHECK_THROWS_WITH(gradcheck([](const std::vector<Tensor>& in) { return in[0] * 2.0; }, {input()}), contains("got one under NoGrad"));
  }
  CHECK_THROWS_WITH(gradcheck([](const std::vector<Tensor>& in) { return in[0] * 2.0; }, {ones({2})}),
                    contains("[gradcheck] input 0: expected f64, got f32"));
  CHECK_THROWS_WITH(gradcheck([](const std::vector<Tensor>& in) { return in[0].cast(DType::f32); }, {input()}),
                    contains("the function's result: expected f64"));
  CHECK(gradcheck([](const std::vector<Tensor>& in) { return in[0] * 2.0; }, {zeros({0, 3}, DType::f64)}).ok);
}
