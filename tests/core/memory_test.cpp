#include <lamina/core/memory.h>
#include <lamina/ops/elementwise.h>
#include <lamina/ops/matmul.h>
#include <lamina/ops/reduce.h>

#include <set>
#include <vector>

#include "support/allclose.h"
#include "support/random.h"

using namespace lamina;

TEST_CASE("live and peak bytes follow the tensors", "[core][memory]") {
  const int64_t start = memory_stats().current_bytes;
  reset_peak_memory();
  CHECK(memory_stats().peak_bytes == start);
  {
    const Tensor a = Tensor::empty({1024});  // 4096 bytes, a size class of its own
    CHECK(memory_stats().current_bytes == start + 4096);
    {
      const Tensor b = Tensor::empty({2048});
      CHECK(memory_stats().current_bytes == start + 4096 + 8192);
    }
    CHECK(memory_stats().current_bytes == start + 4096);
  }
  CHECK(memory_stats().current_bytes == start);
  CHECK(memory_stats().peak_bytes == start + 4096 + 8192);
  reset_peak_memory();
  CHECK(memory_stats().peak_bytes == start);
}

TEST_CASE("size classes waste at most a quarter", "[core][memory]") {
  for (const int64_t count : {1, 63, 64, 65, 100, 1000, 5000, 12345, 100000, 1234567}) {
    const int64_t before = memory_stats().current_bytes;
    const Tensor x = Tensor::empty({count}, DType::u8);
    const int64_t held = memory_stats().current_bytes - before;
    CAPTURE(count, held);
    CHECK(held >= count);
    CHECK(held <= std::max<int64_t>(64, count + count / 4 + 64));
    CHECK(held % 64 == 0);
  }
}

TEST_CASE("freed memory is reused and can be given back", "[core][memory]") {
  release_cached_memory();
  { const Tensor x = Tensor::empty({777}); }
  const int64_t calls = memory_stats().system_allocations;
  CHECK(memory_stats().cached_bytes >= 777 * 4);
  { const Tensor x = Tensor::empty({777}); }
  CHECK(memory_stats().system_allocations == calls);
  release_cached_memory();
  CHECK(memory_stats().cached_bytes == 0);
  { const Tensor x = Tensor::empty({777}); }
  CHECK(memory_stats().system_allocations == calls + 1);
}

TEST_CASE("large buffers begin at four places of a page, in turn", "[core][memory]") {
  release_cached_memory();
  for (const int64_t count : {4096, 5000, 40000, 1 << 20}) {  // 16 KB and more, up to huge pages
    std::set<uintptr_t> places;
    std::vector<Tensor> tensors;
    for (int i = 0; i < 4; ++i) {
      tensors.push_back(Tensor::zeros({count}));
      const auto address = reinterpret_cast<uintptr_t>(tensors.back().data<float>());
      CHECK(address % 1024 == 0);
      places.insert(address % 4096);
    }
    CAPTURE(count);
    CHECK(places.size() == 4);
    for (Tensor& x : tensors) CHECK((x + 1.0).to_vector<float>().back() == 1);  // the last entry is there
  }
  release_cached_memory();  // finds where they really began
  CHECK(memory_stats().cached_bytes == 0);
}

TEST_CASE("a training loop in its steady state asks nothing of the system", "[core][memory]") {
  Tensor w1 = test::normal({20, 30}, 1).set_requires_grad(), w2 = test::normal({1, 20}, 2).set_requires_grad();
  const Tensor x = test::normal({16, 30}, 3);
  const auto step = [&] {
    const Tensor loss = mean(square(linear(tanh(linear(x, w1)), w2)));
    w1.zero_grad();
    w2.zero_grad();
    loss.backward();
  };
  for (int i = 0; i < 3; ++i) step();
  const MemoryStats before = memory_stats();
  for (int i = 0; i < 50; ++i) step();
  const MemoryStats after = memory_stats();
  CHECK(after.system_allocations == before.system_allocations);
  CHECK(after.current_bytes == before.current_bytes);
  CHECK(after.cached_bytes == before.cached_bytes);
}

TEST_CASE("running out of memory names what was wanted and held", "[core][memory]") {
  const int64_t held = memory_stats().current_bytes;
  set_memory_limit(held + (1 << 20));
  CHECK_THROWS_WITH(Tensor::empty({1 << 20}),
                    contains("[memory] out of memory on cpu: wanted 4.0 MiB") && contains("held by live tensors") && contains("limit"));
  { const Tensor fits = Tensor::empty({1 << 16}); }
  set_memory_limit(0);
  CHECK(Tensor::empty({1 << 20}).defined());
  CHECK_THROWS_WITH(Tensor::empty({int64_t{1} << 50}), contains("out of memory"));
  CHECK(memory_stats().current_bytes == held);
}
