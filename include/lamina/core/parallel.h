#pragma once
// The thread count, set in one place for lamina's own loops and for BLAS.
// lamina's own kernels give the same bits for every thread count (fixed chunks, ordered reductions); OpenBLAS products do not.

#include <cstdint>
#include <string>
#include <type_traits>

namespace lamina {

/// Threads in use; at the start the cores this process may use (affinity and cgroup quota), or OMP_NUM_THREADS where that is set.
int num_threads();

/// Throws Error unless 1 <= count <= 1024. A child made by fork() has one thread; a larger count set there would hang in OpenMP.
void set_num_threads(int count);

/// "OpenBLAS 0.3.21 (openmp, SkylakeX)", and ", AMX" where f32 products use that unit, for run records.
std::string blas_description();

namespace detail {
using RangeFn = void (*)(void* context, int64_t begin, int64_t end);
void parallel_ranges(int64_t count, int64_t grain, RangeFn fn, void* context);
/// Makes the calling thread's BLAS calls use num_threads(); the gemm entry calls it before each product, which must have OpenBLAS to itself.
void use_blas_threads();
}  // namespace detail

/// Calls f(begin, end) on ranges that cover [0, count), where there are several each at least half as long as `grain`, on all threads; denormals
/// are flushed to zero inside. f must not depend on where ranges are cut. Exceptions thrown by f reach the caller. Nested calls run serially.
template <class F>
void parallel_for(int64_t count, int64_t grain, F&& f) {
  detail::parallel_ranges(
      count, grain, [](void* context, int64_t begin, int64_t end) { (*static_cast<std::remove_reference_t<F>*>(context))(begin, end); }, &f);
}

}  // namespace lamina
