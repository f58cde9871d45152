// Two GPUs in one program: each has a stream, memory and cuBLAS of its own. Run by a ctest entry under the emulator, which has two then, finds memory
// and streams of another GPU, and does what is queued as late as CUDA allows.
#include <lamina/autograd/graph.h>
#include <lamina/ops/elementwise.h>
#include <lamina/ops/matmul.h>
#include <lamina/ops/norm.h>
#include <lamina/ops/shape_ops.h>

#include "devices/agreement.h"

using namespace lamina;
using namespace lamina::test;

namespace {
const Device first{Device::Kind::cuda, 0}, second{Device::Kind::cuda, 1};
}

TEST_CASE("a tensor crosses between GPUs after what makes it, and before its memory is used again", "[.two_gpus]") {
  REQUIRE(cuda_device_count() == 2);
  const Tensor ones = Tensor::ones({5000});
  for (const auto& [from, to] : {std::pair{first, second}, {second, first}}) {
    Tensor there;
    {
      const Tensor made = ones.to(from) * 3.0;
      there = made.to(to);
    }
    const Tensor in_its_place = Tensor::full({5000}, 7.0, DType::f32, from);
    synchronize(from);
    CHECK(there.device() == to);
    CHECK(same_bits(there, Tensor::full({5000}, 3.0)));
    CHECK(same_bits(in_its_place, Tensor::full({5000}, 7.0)));
  }
}

TEST_CASE("two GPUs compute in turns what the CPU does", "[.two_gpus]") {
  constexpr double tolerance = f32_agreement;
  const Tensor x = normal({4, 3, 8}, 1), w = normal({8, 8}, 2), gain = normal({8}, 3), dy = normal({4, 3, 8}, 4);
  const auto gradient = [&](Device where) {
    Tensor weight = w.to(where).detach().set_requires_grad();
    layer_norm(matmul(x.to(where), weight), {8}, gain.to(where)).backward(dy.to(where));
    return weight.grad();
  };
  const Tensor expected = gradient(Device::cpu());
  CHECK(norm_of(expected) > 1e-3);
  std::vector<Tensor> on_gpus;
  for (int turn = 0; turn < 2; ++turn)
    for (const Device where : {first, second}) on_gpus.push_back(gradient(where));
  for (const Tensor& have : on_gpus) check_close(have, values(expected), tolerance);
  CHECK(same_bits(on_gpus[0], on_gpus[1]));
}

TEST_CASE("operands on two GPUs are refused; an index out of range is told where it was found", "[.two_gpus]") {
  CHECK_THROWS_WITH(Tensor::ones({2}, DType::f32, first) + Tensor::ones({2}, DType::f32, second), contains("[add]") && contains("cuda:1"));
  const Tensor table = Tensor::ones({5, 3}, DType::f32, second), ids = Tensor::full({2}, 9.0, DType::i64, second);
  const Tensor rows = embedding(ids, table);
  CHECK_NOTHROW(synchronize(first));
  CHECK_THROWS_WITH(synchronize(second), contains("[embedding] ids: 9 at position 0 is out of range 0 to 4"));
}
