#include <lamina/lamina.h>

#include <cstdio>

using namespace lamina;

int main() {
  nn::Sequential model(nn::Linear(784, 1000), nn::LayerNorm(1000), nn::ReLU(),
                       nn::Linear(1000, 1000), nn::LayerNorm(1000), nn::ReLU(),
                       nn::Linear(1000, 10));
  model.init(/*seed=*/1);
  optim::Adam adam(model.parameters(), {.lr = 1e-3});
  data::Loader batches(data::mnist(data::mnist_dir(), data::Split::train), {.batch_size = 128, .shuffle_seed = 1});
  double last = 0;
  for (auto [images, labels] : batches) {
    Tensor loss = cross_entropy(model(images), labels);
    adam.zero_grad();
    loss.backward();
    adam.step();
    last = loss.item();
  }
  std::printf("%s\nloss after one epoch: %.4f\n", model.summary().c_str(), last);
}
