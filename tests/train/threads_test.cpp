// Training with several thread counts. BLAS products may cut their sums elsewhere; everything else has the same bits. [cpu]: a GPU has no
// thread count.

#include <lamina/ops/loss.h>

#include "support/evaluate.h"
#include "train/small_run.h"

using namespace lamina;
using namespace lamina::test;

namespace {

struct Trained {
  std::vector<double> losses;
  nn::StateDict state;
};

// Sizes at which products go to BLAS and loops are shared out.
Trained trained(const std::string& norm, int threads) {
  const Threads guard(threads);
  nn::Sequential model = nn::MLP({.sizes = {784, 256, 10}, .norm = norm, .dropout = 0.2});
  test::init(model, 3);
  optim::Adam adam(model.parameters());
  const Tensor x = uniform({96, 784}, 1, 0, 1), labels = integers({96}, 2, 0, 10);
  Trained result;
  for (int step = 0; step < 4; ++step) {
    const Tensor loss = cross_entropy(model(x), labels);
    result.losses.push_back(loss.item());
    adam.zero_grad();
    loss.backward();
    adam.step();
  }
  for (const auto& [name, tensor] : model.state_dict()) result.state.emplace_back(name, tensor.clone());
  return result;
}

}  // namespace

TEST_CASE("one thread count repeats to the bit, several agree to rounding, dropout included (G09)", "[train][threads][cpu]") {
  for (const char* norm : {"none", "layer", "batch"}) {
    const Trained one = trained(norm, 1);
    CHECK(one.losses.back() < one.losses.front());
    for (const int threads : {1, 2, 8}) {
      const Trained first = trained(norm, threads), second = trained(norm, threads);
      INFO(norm << ", " << threads << " threads");
      CHECK(first.losses == second.losses);
      REQUIRE(first.state.size() == second.state.size());
      for (size_t i = 0; i < first.state.size(); ++i) CHECK(same_bits(first.state[i].second, second.state[i].second));
      CHECK(difference(first.losses[0], one.losses[0]) < f32_sum);
      CHECK(difference(first.losses[1], one.losses[1]) < 1e-3);  // Adam's first step makes a sign of what is near zero
    }
  }
}
