#include <lamina/core/error.h>
#include <lamina/core/parallel.h>
#include <lamina/ops/elementwise.h>
#include <lamina/ops/matmul.h>

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include "support/evaluate.h"

// OpenBLAS's own account of its threads.
extern "C" int openblas_get_num_procs(void);
extern "C" int openblas_get_num_threads(void);

using namespace lamina;
using namespace lamina::test;

namespace {

/// Entries -3..3: sums of products are exact in f32 in any order. Large enough for OpenBLAS.
Tensor integers_of(const Shape& shape, int64_t step) {
  std::vector<float> values(static_cast<size_t>(shape.numel()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(static_cast<int64_t>(i) * step % 7 - 3);
  return Tensor::from(values, shape);
}

}  // namespace

TEST_CASE("parallel_for gives each index to exactly one call, whatever the threads", "[core][parallel]") {
  for (const int threads : {1, 2, 3, 8}) {
    const Threads guard(threads);
    for (const int64_t count : {0, 1, 2, 7, 8, 1000, 100003}) {
      for (const int64_t grain : {1, 3, 1000}) {
        std::vector<int> seen(static_cast<size_t>(count));
        std::atomic<int64_t> short_ranges = 0;
        parallel_for(count, grain, [&](int64_t begin, int64_t end) {
          if (end - begin < std::min(grain, count) / 2) ++short_ranges;
          for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
        });
        CAPTURE(threads, count, grain);
        CHECK(seen == std::vector<int>(static_cast<size_t>(count), 1));
        CHECK(short_ranges == 0);
      }
    }
  }
}

TEST_CASE("parallel_for: nested loops run, and exceptions reach the caller", "[core][parallel]") {
  const Threads guard(4);
  std::vector<int> seen(64);
  parallel_for(8, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      parallel_for(8, 1, [&](int64_t from, int64_t to) {
        for (int64_t j = from; j < to; ++j) ++seen[static_cast<size_t>(i * 8 + j)];
      });
  });
  CHECK(seen == std::vector<int>(64, 1));
  for (const int64_t bad : {0, 500, 999})
    CHECK_THROWS_WITH(parallel_for(1000, 1,
                                   [&](int64_t begin, int64_t end) {
                                     if (begin <= bad && bad < end) fail("loop", "stop");
                                   }),
                      "[loop] stop");
  CHECK_THROWS_WITH(set_num_threads(0), contains("[threads] expected 1 to 1024 threads, got 0"));
  CHECK_THROWS_WITH(set_num_threads(1025), contains("got 1025"));
  CHECK(num_threads() == 4);
}

TEST_CASE("OpenBLAS uses as many threads as lamina, from every thread", "[core][parallel]") {
  const Tensor a = integers_of({128, 128}, 3).cast(DType::f64), b = integers_of({128, 128}, 5).cast(DType::f64);
  const int cores = openblas_get_num_procs();  // newer versions use no more threads than that
  const auto used = [&] {
    matmul(a, b, {.transpose_a = true, .transpose_b = true});  // OpenBLAS's
    return std::min(openblas_get_num_threads(), cores);
  };
  for (const int threads : {2, 1, 3, 2}) {
    const Threads guard(threads);
    CHECK(used() == std::min(threads, cores));
    // Another thread changes the count behind this one's back.
    std::thread([&] {
      const Threads other(1);
      CHECK(used() == 1);
    }).join();
    CHECK(used() == std::min(threads, cores));
  }
}

TEST_CASE("products of eight threads at once are exact and wait without spinning (I05)", "[core][parallel]") {
  const Threads guard(8);
  const Tensor a = integers_of({64, 100}, 7919), b = integers_of({100, 64}, 104729), large = integers_of({200, 200}, 3);
  const MatmulOptions blas{.transpose_a = true, .transpose_b = true};  // two transposes are OpenBLAS's, the others lamina's own
  const Tensor expected = matmul(a, b), expected_large = matmul(large, large, blas);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&] {
      for (int repeat = 0; repeat < 50; ++repeat)
        wrong += !same_bits(matmul(a, b), expected) + !same_bits(matmul(large, large, blas), expected_large);
    });
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(values(expected)[0] != 0);
}

TEST_CASE("a child made by fork after products and loops computes on one thread instead of hanging (I05)", "[core][parallel]") {
  const Threads guard(2);
  const MatmulOptions blas{.transpose_a = true, .transpose_b = true};
  const Tensor a = integers_of({200, 200}, 3), expected = matmul(a, a), by_blas = matmul(a, a, blas), wide = Tensor::ones({1000, 1000}),
               sums = wide + wide;
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    alarm(60);
    _exit(num_threads() == 1 && same_bits(matmul(a, a), expected) && same_bits(matmul(a, a, blas), by_blas) && same_bits(wide + wide, sums) ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(num_threads() == 2);
}
