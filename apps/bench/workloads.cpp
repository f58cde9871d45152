#include "bench/workloads.h"

#include <fmt/format.h>
#include <lamina/lamina.h>
#include <lamina/nn/rnn.h>

#include <array>
#include <memory>
#include <utility>

namespace bench {

using namespace lamina;

namespace {

enum Arrays : size_t { parameter, first_moment, second_moment, gradient };

Sweep adam_sweep(int64_t parameters, bool reads_gradient = false) {
  return {4 * parameters, reads_gradient ? std::vector<size_t>{gradient} : std::vector<size_t>{}, {}, {parameter, first_moment, second_moment}};
}

struct MlpState {
  nn::Sequential model;
  std::unique_ptr<optim::Optimizer> optimizer;
  Tensor images, labels;
};

// Makes one training step of an MLP.
std::function<std::function<void()>()> mlp_training(const std::vector<int64_t>& sizes, const std::string& norm, int64_t batch, bool adam,
                                                    Device device) {
  return [=]() -> std::function<void()> {
    auto state = std::make_shared<MlpState>();
    state->model = nn::MLP({.sizes = sizes, .norm = norm});
    state->model.init(1);
    state->model.to(device);
    if (adam)
      state->optimizer = std::make_unique<optim::Adam>(state->model.parameters(), optim::AdamOptions{.lr = 1e-3});
    else
      state->optimizer = std::make_unique<optim::SGD>(state->model.parameters(), optim::SGDOptions{.lr = 0.1});
    Rng rng(2);
    state->images = rand({batch, sizes.front()}, rng).to(device);
    state->labels = randint({batch}, 0, sizes.back(), rng).to(device);
    return [state] {
      state->optimizer->zero_grad();
      cross_entropy(state->model(state->images), state->labels).backward();
      state->optimizer->step();
    };
  };
}

// What a step of three layers costs where there is next to nothing to compute: the graph. It has no floor.
Workload graph_step(const std::string& norm, Device device) {
  return {fmt::format("graph/mlp-{}-2-2-2-2", norm), {}, mlp_training({2, 2, 2, 2}, norm, 2, false, device)};
}

// The paper's MLP, one training step. Its floor: every product's operations (no gradient for the images), each weight read once forward and, but for
// the first layer, once backward, and the update's parameters and moments read and written once. The weight gradient need not exist in memory.
Workload mlp_step(const std::string& norm, int64_t batch, bool adam, Device device) {
  const std::vector<int64_t> sizes{784, 1000, 1000, 10};
  double products = 0;
  int64_t parameters = 0, backward_weights = 0;
  for (size_t i = 0; i + 1 < sizes.size(); ++i) {
    const int64_t weights = sizes[i] * sizes[i + 1];
    products += static_cast<double>(weights) * (i == 0 ? 2 : 3);
    parameters += weights + sizes[i + 1] * (norm == "none" || i + 2 == sizes.size() ? 1 : 3);
    if (i > 0) backward_weights += weights;
  }
  const Sweep update = adam ? adam_sweep(parameters) : Sweep{4 * parameters, {}, {}, {parameter}};
  const Work work{2.0 * static_cast<double>(batch) * products,
                  {{4 * parameters, {parameter}, {}, {}}, {4 * backward_weights, {parameter}, {}, {}}, update}};
  return {fmt::format("step/mlp-{}-n{}-{}", norm, batch, adam ? "adam" : "sgd"), work, mlp_training(sizes, norm, batch, adam, device)};
}

// One training step of a recurrent layer over T steps of N sequences, the loss being mean(y w). Its floor: the products of every step (no gradient
// for x, no product with the zeros before the first step), and the update, which reads the gradients.
Workload recurrent_step(const std::string& norm, int64_t T, int64_t N, int64_t C, int64_t H, Device device) {
  const int64_t parameters = 4 * H * (C + H) + 8 * H + (norm == "none" ? 0 : 10 * H);
  const double per_row = 2.0 * static_cast<double>(4 * H * N);
  const Work work{per_row * static_cast<double>(2 * T * C + 3 * (T - 1) * H), {adam_sweep(parameters, true)}};
  const auto make = [=]() -> std::function<void()> {
    struct State {
      nn::LSTM model;
      std::unique_ptr<optim::Adam> adam;
      Tensor x, w;
    };
    Rng rng(5);
    const auto state = std::make_shared<State>(
        State{nn::LSTM({.input = C, .hidden = H, .norm = norm}), nullptr, randn({T, N, C}, rng).to(device), randn({T, N, H}, rng).to(device)});
    state->model.init(1);
    state->model.to(device);
    state->adam = std::make_unique<optim::Adam>(state->model.parameters(), optim::AdamOptions{.lr = 1e-3});
    return [state] {
      state->adam->zero_grad();
      mean(state->model(state->x).y * state->w).backward();
      state->adam->step();
    };
  };
  return {fmt::format("step/{}-t{}-n{}-c{}-h{}", norm == "none" ? "lstm" : "ln-lstm", T, N, C, H), work, make};
}

Workload adam_update(int64_t n, Device device) {
  const auto make = [n, device]() -> std::function<void()> {
    struct State {
      nn::Parameter p;
      std::unique_ptr<optim::Adam> adam;
    };
    auto state = std::make_shared<State>();
    Rng rng(4);
    state->p = nn::Parameter({n}, nn::init::normal(1.0));
    state->p.draw(rng);
    state->p.to(device);
    state->p.tensor().set_grad(randn({n}, rng).to(device));
    state->adam = std::make_unique<optim::Adam>(std::vector<nn::Parameter*>{&state->p}, optim::AdamOptions{.lr = 1e-3});
    return [state] { state->adam->step(); };
  };
  return {"op/adam-10m", {0, {adam_sweep(n, true)}}, make};
}

}  // namespace

std::vector<Workload> workloads(Device device) {
  std::vector<Workload> all;
  for (const std::string norm : {"none", "layer", "batch"})
    for (const int64_t batch : {4, 128})
      for (const bool adam : {true, false}) all.push_back(mlp_step(norm, batch, adam, device));
  for (const std::string norm : {"none", "layer"})
    for (const auto& [T, N, C, H] : {std::array<int64_t, 4>{28, 128, 28, 128}, {100, 32, 128, 256}, {64, 64, 256, 512}, {128, 8, 400, 400}})
      all.push_back(recurrent_step(norm, T, N, C, H, device));
  for (Workload& workload : norm_workloads(device)) all.push_back(std::move(workload));
  all.push_back(adam_update(10'000'000, device));
  for (const std::string norm : {"none", "layer"}) all.push_back(graph_step(norm, device));
  return all;
}

}  // namespace bench
