// Layers, optimisers and whole trainings on a GPU against the CPU.
#include <lamina/autograd/graph.h>
#include <lamina/nn/mlp.h>
#include <lamina/nn/rnn.h>
#include <lamina/ops/loss.h>
#include <lamina/ops/reduce.h>
#include <lamina/ops/shape_ops.h>
#include <lamina/optim/optimizer.h>

#include <memory>

#include "devices/agreement.h"
#include "nn/support.h"

using namespace lamina;
using namespace lamina::test;

namespace {

/// Twenty steps of training let rounding grow: each step's gradients differ by some units in the last place, and Adam divides by small moments.
/// Seen: 4e-6 in the losses, 2e-4 in the parameters (f32), 3e-13 and 2e-12 (f64).
constexpr double f32_trajectory = 2e-4, f32_after_training = 2e-3, f64_trajectory = 1e-10;

struct Trajectory {
  std::vector<double> losses;
  std::vector<Tensor> parameters;  // at the end, on the host
};

using Adam = optim::Adam;

/// 20 steps on batches that a seed gives.
template <class Model, class Loss>
Trajectory train(Model model, DType dtype, Device where, Loss&& loss_of) {
  model.init(3);
  model.cast(dtype);
  model.to(where);
  Adam adam(model.parameters(), {.lr = 0.01});
  Trajectory result;
  for (uint64_t step = 0; step < 20; ++step) {
    adam.zero_grad();
    const Tensor loss = loss_of(model, step, dtype, where);
    loss.backward();
    adam.step();
    result.losses.push_back(loss.item());
  }
  for (const auto& [name, value] : model.state_dict()) result.parameters.push_back(value.to(Device::cpu()).clone());
  return result;
}

void check_trajectories(const std::function<Trajectory(DType, Device)>& run) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    const Trajectory cuda = run(dtype, device()), cpu = run(dtype, Device::cpu()), again = run(dtype, device());
    const bool f32 = dtype == DType::f32;
    CHECK(cpu.losses.back() < 0.9 * cpu.losses.front());  // it learns
    for (size_t step = 0; step < cpu.losses.size(); ++step) {
      INFO("step " << step);
      CHECK(difference(cuda.losses[step], cpu.losses[step]) <= (f32 ? f32_trajectory : f64_trajectory));
    }
    CHECK(cuda.losses == again.losses);
    for (size_t i = 0; i < cpu.parameters.size(); ++i) {
      INFO("state " << i);
      CHECK(max_difference(cuda.parameters[i], cpu.parameters[i]) <= (f32 ? f32_after_training : f64_trajectory));
      CHECK(same_bits(cuda.parameters[i], again.parameters[i]));
    }
  }
}

}  // namespace

TEST_CASE("CPU and GPU agree: MLPs with every norm, training and evaluation") {
  for (const std::string& norm : mlp_norms()) {
    INFO(norm);
    const nn::MLPOptions options{.sizes = {10, 16, 6}, .norm = norm, .dropout = 0.3};
    nn::Sequential cuda = nn::MLP(options), cpu = nn::MLP(options);
    cuda.init(1).to(device());
    cpu.init(1);
    const Tensor x = normal({9, 10}, 2), dy = normal({9, 6}, 3);
    for (const bool training : {true, false}) {
      cuda.train(training);
      cpu.train(training);
      cuda.zero_grad();
      cpu.zero_grad();
      const Tensor y = cuda(x), expected = cpu(x.to(Device::cpu()));
      check_agreement("y", y, expected, f32_agreement);
      y.backward(dy);
      expected.backward(dy.to(Device::cpu()));
      const auto a = cuda.named_parameters(), b = cpu.named_parameters();
      for (size_t i = 0; i < a.size(); ++i)
        check_agreement("gradient of " + a[i].path, a[i].parameter->grad(), b[i].parameter->grad(), f32_agreement);
      check_same_state(cuda, cpu, f32_agreement);
    }
  }
}

TEST_CASE("CPU and GPU agree: recurrent layers, stacked, both directions, with dropout") {
  for (const RecurrentCell cell : {RecurrentCell::lstm, RecurrentCell::gru, RecurrentCell::rnn})
    for (const std::string& norm : nn::Recurrent::norm_names(cell)) {
      nn::Recurrent cuda(cell, {.input = 3, .hidden = 5, .layers = 2, .norm = norm, .dropout = 0.2, .bidirectional = true, .max_steps = 4});
      nn::Recurrent cpu = cuda;
      INFO(cuda.describe());
      cuda.init(1).to(device());
      cpu.init(1);
      const Tensor x = normal({4, 3, 3}, 2), dy = normal({4, 3, 10}, 3);
      const nn::RecurrentOutput y = cuda(x), expected = cpu(x.to(Device::cpu()));
      check_agreement("y", y.y, expected.y, f32_agreement);
      check_agreement("h", y.state.h, expected.state.h, f32_agreement);
      y.y.backward(dy);
      expected.y.backward(dy.to(Device::cpu()));
      check_same_gradients(cuda, cpu, f32_agreement);
      check_same_state(cuda, cpu, f32_agreement);
    }
}

TEST_CASE("CPU and GPU agree: optimisers and clipping, twelve odd-sized parameters in one step") {
  using Make = std::function<std::unique_ptr<optim::Optimizer>(const std::vector<nn::Parameter*>&)>;
  const std::vector<Make> makes = {[](const auto& p) { return std::make_unique<optim::SGD>(p, optim::SGDOptions{.lr = 0.1, .weight_decay = 0.1}); },
                                   [](const auto& p) {
                                     return std::make_unique<optim::SGD>(
                                         p, optim::SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true});
                                   },
                                   [](const auto& p) { return std::make_unique<Adam>(p, optim::AdamOptions{.lr = 0.1, .weight_decay = 0.1}); },
                                   [](const auto& p) { return std::make_unique<optim::AdamW>(p, optim::AdamOptions{.lr = 0.1}); }};
  for (size_t index = 0; index < makes.size(); ++index)
    for (const DType dtype : {DType::f32, DType::f64}) {
      INFO("optimiser " << index);
      const auto run = [&](Device where) {
        std::vector<nn::Parameter> parameters;
        for (int64_t i = 0; i < 12; ++i) parameters.emplace_back(Shape{i, 17 * i + 1}, nn::init::normal(1), dtype);
        std::vector<nn::Parameter*> list;
        for (nn::Parameter& p : parameters) {
          p.draw(Rng(list.size()));
          p.to(where);
          list.push_back(&p);
        }
        const auto optimizer = makes[index](list);
        for (uint64_t step = 0; step < 3; ++step) {
          for (size_t i = 0; i < 12; ++i)
            list[i]->tensor().set_grad(i == 5 && step == 1 ? Tensor() : normal(list[i]->shape(), 100 * step + i, dtype).to(where));
          if (step == 1) optim::clip_grad_norm(list, 3);
          if (step == 2) optim::clip_grad_value(list, 0.7);
          CHECK(optimizer->step());
        }
        std::vector<Tensor> values;
        for (const nn::Parameter* p : list) values.push_back(p->value());
        for (const auto& [name, value] : optimizer->state()) values.push_back(value);
        return values;
      };
      const auto cuda = run(device()), cpu = run(Device::cpu()), again = run(device());
      REQUIRE(cuda.size() == cpu.size());
      for (size_t i = 0; i < cuda.size(); ++i) {
        INFO("tensor " << i);
        check_close(cuda[i], values(cpu[i]), agreement(dtype));
        CHECK(same_bits(cuda[i], again[i]));
      }
    }
}

TEST_CASE("twenty steps of an MLP with layer norm, batch norm and dropout follow the CPU's") {
  // No biases before a batch norm: their gradient is nothing but rounding, of which Adam makes whole steps.
  for (const std::string norm : {"layer", "batch"}) {
    INFO(norm);
    check_trajectories([&](DType dtype, Device where) {
      return train(nn::MLP({.sizes = {12, 20, 16, 4}, .norm = norm, .bias = norm != "batch", .dropout = 0.2}), dtype, where,
                   [](nn::Sequential& model, uint64_t step, DType type, Device on) {
                     const Tensor x = normal({16, 12}, step, type);
                     return cross_entropy(model(x.to(on)), argmax(slice(x, 1, 0, 4)).to(on));
                   });
    });
  }
}

TEST_CASE("twenty steps of an LN-LSTM follow the CPU's") {
  struct Model : nn::Module {
    nn::LSTM lstm{{.input = 4, .hidden = 12, .norm = "layer"}};
    nn::Linear head{12, 1};
    void members(nn::Visitor& v) override {
      v("lstm", lstm);
      v("head", head);
    }
    Tensor operator()(const Tensor& x) { return head(lstm(x).y); }
  };
  check_trajectories([](DType dtype, Device where) {
    return train(Model(), dtype, where, [](Model& model, uint64_t step, DType type, Device on) {
      const Tensor x = normal({6, 8, 4}, step, type).to(on);
      return mse_loss(model(x), slice(x, 2, 0, 1));
    });
  });
}

TEST_CASE("a queued step's loss is refused where the parameters are not") {
  for (const bool swapped : {false, true}) {
    const Device where = swapped ? Device::cpu() : device(), other = swapped ? device() : Device::cpu();
    nn::Parameter p(Shape{3}, nn::init::normal(1));
    p.draw(Rng(1));
    p.to(where);
    p.tensor().set_grad(Tensor::ones({3}, DType::f32, where));
    Adam adam({&p});
    CHECK_THROWS_WITH(adam.queue_step({.loss = Tensor::full({}, 1, DType::f32, other), .items = 1}),
                      contains("[adam] loss: expected it on " + where.str() + " as the parameters, got " + other.str()));
    CHECK(adam.progress().steps == 0);
  }
}
