#include <lamina/core/parallel.h>

#include <cblas.h>
#include <omp.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "core/format.h"
#include "core/matrix_unit.h"
#include "core/team.h"

namespace lamina {

namespace {

// Flush-to-zero and denormals-are-zero while it lives: denormals make a recurrent step several times slower and carry no information here.
class FlushDenormals {
 public:
#if defined(__SSE2__)
  FlushDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040); }
  ~FlushDenormals() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#else
  FlushDenormals() {}
#endif
};

// The cores that this process may use: affinity, then a cgroup v2 quota such as "150000 100000".
int usable_cores() {
  cpu_set_t set;
  int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : omp_get_num_procs();
  std::ifstream quota_file("/sys/fs/cgroup/cpu.max");
  double quota = 0, period = 0;
  if (quota_file >> quota >> period && quota > 0 && period > 0) cores = std::min(cores, std::max(1, static_cast<int>(quota / period)));
  return std::max(cores, 1);
}

int initial_threads() {
  if (openblas_get_parallel() != OPENBLAS_OPENMP)
    std::fprintf(stderr,
                 "lamina: warning: this process runs OpenBLAS in its %s flavour, which makes training about 2x slower; "
                 "install libopenblas0-openmp and link that\n",
                 openblas_get_parallel() == OPENBLAS_THREAD ? "pthread" : "sequential");
  return std::getenv("OMP_NUM_THREADS") ? std::max(omp_get_max_threads(), 1) : usable_cores();
}

std::atomic<int>& thread_count() {
  // A child made by fork has none of the threads that OpenMP keeps, but OpenMP does not know that and would wait for them for ever.
  static std::atomic<int> count{(pthread_atfork(nullptr, nullptr, [] { thread_count().store(1); }), initial_threads())};
  return count;
}

}  // namespace

int num_threads() { return thread_count().load(std::memory_order_relaxed); }

void set_num_threads(int count) {
  if (count < 1 || count > 1024) fail("threads", "expected 1 to 1024 threads, got {}", count);
  thread_count().store(count, std::memory_order_relaxed);
}

std::string blas_description() {
  const char* flavours[] = {"sequential", "pthread", "openmp"};
  const int parallel = std::clamp(openblas_get_parallel(), 0, 2);
  std::string version = openblas_get_config();  // "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH ..."
  version = version.substr(0, version.find(' ', version.find(' ') + 1));
  return fmt::format("{} ({}, {}){}", version, flavours[parallel], openblas_get_corename(), detail::has_matrix_unit() ? ", AMX" : "");
}

namespace detail {

void use_blas_threads() {
  // OpenBLAS (OpenMP flavour) takes OpenMP's count, which is a setting of the calling thread; but if its own, which all threads share, is 1, then
  // that.
  const int wanted = num_threads();
  if (omp_get_max_threads() != wanted) omp_set_num_threads(wanted);
  if (openblas_get_num_threads() != wanted) openblas_set_num_threads(wanted);
}

void parallel_ranges(int64_t count, int64_t grain, RangeFn fn, void* context) {
  if (count <= 0) return;
  const int64_t ranges = std::min<int64_t>(num_threads(), (count + grain - 1) / std::max<int64_t>(grain, 1));
  if (ranges <= 1 || omp_in_parallel()) {
    const FlushDenormals flush;
    fn(context, 0, count);
    return;
  }
  std::exception_ptr error;
#pragma omp parallel num_threads(static_cast <int>(ranges))
  {
    const FlushDenormals flush;
    // The team may be smaller than asked for: walk the ranges instead of assuming one thread each.
    for (int64_t range = omp_get_thread_num(); range < ranges; range += omp_get_num_threads()) {
      try {
        fn(context, count * range / ranges, count * (range + 1) / ranges);
      } catch (...) {
#pragma omp critical(lamina_parallel_error)
        if (!error) error = std::current_exception();
      }
    }
  }
  if (error) std::rethrow_exception(error);
}

void Team::wait() const {
  if (size_ == 1) return;
#pragma omp barrier
}

void run_team(int64_t most, TeamFn fn, void* context) {
  const int64_t size = std::min<int64_t>(num_threads(), most);
  if (size <= 1 || omp_in_parallel()) {
    const FlushDenormals flush;
    fn(context, Team(0, 1));
    return;
  }
#pragma omp parallel num_threads(static_cast <int>(size))
  {
    const FlushDenormals flush;
    fn(context, Team(omp_get_thread_num(), omp_get_num_threads()));
  }
}

}  // namespace detail
}  // namespace lamina
