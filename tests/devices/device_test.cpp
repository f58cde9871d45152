// Tensors on a GPU: copies, memory, what they refuse; and the pitfalls of GPUs (H) as users of the library would meet them.
#include <lamina/autograd/graph.h>
#include <lamina/core/memory.h>
#include <lamina/nn/layers.h>
#include <lamina/ops/elementwise.h>
#include <lamina/ops/loss.h>
#include <lamina/ops/matmul.h>
#include <lamina/ops/norm.h>
#include <lamina/ops/reduce.h>
#include <lamina/ops/shape_ops.h>

#include <functional>
#include <memory>
#include <numeric>

#include "devices/agreement.h"

using namespace lamina;
using namespace lamina::test;

TEST_CASE("devices by name", "[devices]") {
  CHECK(built_with_cuda());
  CHECK(cuda_device_count() >= 1);
  CHECK(Device::parse("cuda") == Device::cuda());
  CHECK(Device::parse("auto") == Device::cuda(0));
  CHECK(Device::cuda(0).str() == "cuda:0");
  CHECK_FALSE(device_name(device()).empty());
  const std::string many = std::to_string(cuda_device_count());
  CHECK_THROWS_WITH(Device::cuda(1000), contains("[device] cuda:1000: expected an index below " + many));
  CHECK_THROWS_AS(Device::parse("cuda:1000"), InputError);
}

TEST_CASE("tensors cross between devices in every dtype, with gradients", "[devices]") {
  for (const DType dtype : {DType::f32, DType::f64, DType::i64, DType::u8}) {
    const Tensor cpu = Tensor::arange(1003, dtype), cuda = cpu.to(device());
    CHECK(cuda.device() == device());
    CHECK(same_bits(cuda, cpu));
    CHECK(same_bits(arange(1003, dtype), cpu));
    CHECK(same_bits(cuda.to(Device::cpu()), cpu));
    CHECK(same_bits(cuda.clone(), cpu));
    CHECK(cuda.to(device()).is_same(cuda));
    Tensor back = Tensor::zeros({1003}, dtype);
    back.copy_(cuda);
    CHECK(same_bits(back, cpu));
    CHECK(same_bits(full({7}, 3, dtype), Tensor::full({7}, 3, dtype)));
  }
  CHECK(empty({0, 3}).to(Device::cpu()).shape() == Shape{0, 3});
  CHECK(zeros({2, 2}).str() == "f32 [2, 2] on cuda:0\n[[0, 0],\n [0, 0]]");
  Tensor x = normal({5}, 1).to(Device::cpu()).detach().set_requires_grad();
  const Tensor dy = normal({5}, 2);
  (x.to(device()) * 2.0).backward(dy);
  CHECK(x.grad().device().is_cpu());
  check_close(x.grad(), dy * 2.0, exact);
}

TEST_CASE("operands on two devices are refused in one line", "[devices]") {
  const Tensor cuda = ones({2, 2}), cpu = Tensor::ones({2, 2});
  CHECK_THROWS_WITH(cuda + cpu, contains("[add]") && contains("cuda:0") && contains("cpu"));
  CHECK_THROWS_WITH(matmul(cuda, cpu), contains("[matmul]") && contains("cuda:0") && contains("cpu"));
  CHECK_THROWS_WITH(concat({cuda, cpu}), contains("[concat]") && contains("cuda:0") && contains("cpu"));
  CHECK_THROWS_WITH(layer_norm(cuda, {2}, Tensor::ones({2})), contains("[layer_norm]") && contains("cuda:0") && contains("cpu"));
  nn::Linear linear(2, 3);
  linear.init(1);
  CHECK_THROWS_WITH(linear(cuda), contains("[linear]") && contains("cuda:0") && contains("cpu"));
}

TEST_CASE("memory of a GPU is pooled, counted, limited, and its end is told with what is held and free", "[devices][pool]") {
  const MemoryStats before = memory_stats(device());
  {
    const Tensor x = empty({1000});
    CHECK(memory_stats(device()).current_bytes == before.current_bytes + 4096);
  }
  const int64_t calls = memory_stats(device()).system_allocations;
  {
    const Tensor again = empty({1000});
    CHECK(memory_stats(device()).system_allocations == calls);
  }
  CHECK(memory_stats(device()).current_bytes == before.current_bytes);
  set_memory_limit(before.current_bytes + (1 << 16), device());
  CHECK_THROWS_WITH(empty({1 << 20}), contains("[memory]") && contains("out of memory") && contains("4.0 MiB") && contains("free on the GPU"));
  set_memory_limit(0, device());
  CHECK_THROWS_WITH(empty({int64_t{1} << 44}), contains("out of memory"));
  CHECK(empty({1000}).numel() == 1000);
  release_cached_memory(device());
  CHECK(memory_stats(device()).cached_bytes == 0);
}

// Run under the emulator alone, by ctest entries with LAMINA_CUDA_POOL=0.
TEST_CASE("without the pool a tensor has memory of its own, in which what nobody wrote is found", "[.no_pool]") {
  const MemoryStats before = memory_stats(device());
  for (int i = 0; i < 3; ++i) {
    const Tensor x = full({1000}, 3);
    CHECK(memory_stats(device()).current_bytes == before.current_bytes + 4096);
  }
  CHECK(memory_stats(device()).system_allocations == before.system_allocations + 3);
  CHECK(memory_stats(device()).current_bytes == before.current_bytes);
  CHECK(memory_stats(device()).cached_bytes == 0);
  CHECK_THROWS_WITH(values(empty({1000})), contains("never written"));
  CHECK_THROWS_WITH(values(empty({5}) + 1.0), contains("block (0, 0, 0)") && contains("never written"));
  CHECK_THROWS_WITH(empty({int64_t{1} << 44}), contains("out of memory"));
}

TEST_CASE("H02: more rows, batches and columns than a grid has on y and z", "[devices]") {
  for (const int64_t n : {65535, 65536, 70000}) {
    const Tensor a = normal({n, 1, 2}, 1), b = normal({n, 2, 1}, 2);
    check_agreement("matmul", matmul(a, b), matmul(a.to(Device::cpu()), b.to(Device::cpu())), f32_agreement);
    const Tensor rows = reshape(a, {n, 2});
    CHECK(same_bits(transpose(rows), transpose(rows.to(Device::cpu()))));
    check_agreement("layer_norm", layer_norm(rows, {2}), layer_norm(rows.to(Device::cpu()), {2}), f32_agreement);
    check_agreement("sum", sum(rows, {1}), sum(rows.to(Device::cpu()), {1}), f32_agreement);
  }
}

TEST_CASE("H03: products are row-major", "[devices]") {
  const Tensor a = tensor<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  std::vector<float> numbers(12);
  std::iota(numbers.begin(), numbers.end(), 1.0F);
  const Tensor b = tensor(numbers, {3, 4});
  const std::vector<double> right{38, 44, 50, 56, 83, 98, 113, 128};
  check_close(matmul(a, b), right, exact);
  check_close(matmul(transpose(a), b, {.transpose_a = true}), right, exact);
  check_close(matmul(a, transpose(b), {.transpose_b = true}), right, exact);
  check_close(matmul(transpose(a), transpose(b), {.transpose_a = true, .transpose_b = true}), right, exact);
}

TEST_CASE("H04: what is copied to a GPU may be changed or freed at once", "[devices]") {
  std::vector<Tensor> copies;
  for (int i = 0; i < 5; ++i) {
    auto source = std::make_unique<std::vector<float>>(300'000, static_cast<float>(i));  // together more than the ring of pinned memory has in a part
    copies.push_back(tensor(*source, {300'000}));
    source->assign(source->size(), -1.0F);
  }
  for (int i = 0; i < 5; ++i) CHECK(same_bits(copies[static_cast<size_t>(i)], Tensor::full({300'000}, i)));
}

TEST_CASE("H04: an index out of range is told at the next read, once, and the device goes on", "[devices]") {
  const Tensor table = normal({5, 3}, 1);
  const Tensor y = embedding(tensor<int64_t>({0, 7, 4}, {3}), table);
  CHECK_THROWS_WITH(synchronize(device()), contains("[embedding] ids: 7 at position 1 is out of range 0 to 4 (found on the GPU)"));
  CHECK_NOTHROW(synchronize(device()));
  const auto have = values(y), rows = values(table);
  for (size_t k = 0; k < 3; ++k) {
    CHECK(have[k] == rows[k]);
    CHECK(have[6 + k] == rows[12 + k]);
  }
}

TEST_CASE("C08: where no label is in range the next read is the error, and nothing that was queued meanwhile became NaN", "[devices]") {
  const Tensor labels = tensor<int64_t>({5, -1, 5}, {3});
  const std::pair<std::string, std::function<Tensor(const Tensor&)>> losses[] = {
      {"cross_entropy", [&](const Tensor& x) { return cross_entropy(x, labels); }},
      {"nll_loss", [&](const Tensor& x) { return nll_loss(x, labels); }}};
  for (const auto& [name, loss] : losses) {
    const Tensor x = normal({3, 5}, 1).set_requires_grad();
    const Tensor y = loss(x);
    y.backward();
    CHECK_THROWS_WITH(y.item(), contains("[" + name + "] labels: ") && contains("is out of range 0 to 4 (found on the GPU)"));
    check_close(y, {0}, exact);
    check_close(x.grad(), zeros({3, 5}), exact);
  }
}

TEST_CASE("H07: rows around and beyond 48 KiB of shared memory", "[devices]") {
  for (const int64_t hidden : {12288, 12289, 16384}) {
    INFO(hidden);
    Tensor x = normal({2, hidden}, 1).detach().set_requires_grad(), cpu = x.to(Device::cpu()).detach().set_requires_grad();
    const Tensor gain = normal({hidden}, 2), dy = normal({2, hidden}, 3);
    const Tensor y = layer_norm(x, {hidden}, gain), expected = layer_norm(cpu, {hidden}, gain.to(Device::cpu()));
    check_agreement("y", y, expected, f32_agreement);
    y.backward(dy);
    expected.backward(dy.to(Device::cpu()));
    check_agreement("dx", x.grad(), cpu.grad(), f32_agreement);
  }
}

TEST_CASE("H08: gradients of one embedding row picked ten thousand times are the same bits in every run, and exact for integers", "[devices]") {
  const Tensor ids = zeros({10000}, DType::i64);
  const auto gradient = [&](const Tensor& dy) {
    Tensor table = ones({3, 2}).set_requires_grad();
    embedding(ids, table).backward(dy);
    return table.grad();
  };
  check_close(gradient(ones({10000, 2})), {10000, 10000, 0, 0, 0, 0}, exact);
  const Tensor dy = normal({10000, 2}, 1, DType::f32, 0, 0.1), first = gradient(dy);
  for (int repeat = 0; repeat < 3; ++repeat) CHECK(same_bits(gradient(dy), first));
}

// Run by a ctest entry of its own, with CUDA_VISIBLE_DEVICES empty and LAMINA_TEST_DEVICE=cpu.
TEST_CASE("H05: a CUDA build on a machine without a GPU uses the CPU, and says why where CUDA is asked for", "[.no_device]") {
  CHECK(built_with_cuda());
  CHECK(cuda_device_count() == 0);
  CHECK(Device::parse("auto").is_cpu());
  CHECK_THROWS_AS(Device::parse("cuda"), InputError);
  CHECK_THROWS_WITH(Device::cuda(), contains("[device] cuda:0: ") && contains("(cudaError"));
  check_close(ones({2}) + 1.0, {2, 2}, exact);
}
