// The CUDA backend of a build without it: there are no GPUs, so nobody gets as far as a kernel.

#include <lamina/core/error.h>

#include "kernels/kernels.h"

namespace lamina::kernels {

namespace {
[[noreturn]] void fail_no_cuda() { fail("device", CudaBackend::why_none()); }
}  // namespace

template <class T>
const GemmKernels<T>& CudaBackend::gemm() {
  fail_no_cuda();
}
template <class T>
const ElementwiseKernels<T>& CudaBackend::elementwise() {
  fail_no_cuda();
}
template <class T>
const ReduceKernels<T>& CudaBackend::reduce() {
  fail_no_cuda();
}
template <class T>
const IndexKernels<T>& CudaBackend::index() {
  fail_no_cuda();
}
template <class T>
const NormKernels<T>& CudaBackend::norm() {
  fail_no_cuda();
}
template <class T>
const SoftmaxKernels<T>& CudaBackend::softmax() {
  fail_no_cuda();
}
template <class T>
const LossKernels<T>& CudaBackend::loss() {
  fail_no_cuda();
}
template <class T>
const RandomKernels<T>& CudaBackend::random() {
  fail_no_cuda();
}
template <class T>
const OptimizerKernels<T>& CudaBackend::optimizer() {
  fail_no_cuda();
}
template <class T>
const RecurrentKernels<T>& CudaBackend::recurrent() {
  fail_no_cuda();
}
const MoveKernels& CudaBackend::move() { fail_no_cuda(); }
const StepKernels& CudaBackend::step() { fail_no_cuda(); }

#define LAMINA_INSTANTIATE_FLOAT(T)                             \
  template const GemmKernels<T>& CudaBackend::gemm();           \
  template const ReduceKernels<T>& CudaBackend::reduce();       \
  template const NormKernels<T>& CudaBackend::norm();           \
  template const SoftmaxKernels<T>& CudaBackend::softmax();     \
  template const OptimizerKernels<T>& CudaBackend::optimizer(); \
  template const LossKernels<T>& CudaBackend::loss();           \
  template const RecurrentKernels<T>& CudaBackend::recurrent();
LAMINA_INSTANTIATE_FLOAT(float)
LAMINA_INSTANTIATE_FLOAT(double)
#define LAMINA_INSTANTIATE(T)                                       \
  template const ElementwiseKernels<T>& CudaBackend::elementwise(); \
  template const IndexKernels<T>& CudaBackend::index();
LAMINA_INSTANTIATE(float)
LAMINA_INSTANTIATE(double)
LAMINA_INSTANTIATE(int64_t)
LAMINA_INSTANTIATE(uint8_t)
template const RandomKernels<float>& CudaBackend::random();
template const RandomKernels<double>& CudaBackend::random();
template const RandomKernels<uint8_t>& CudaBackend::random();
#undef LAMINA_INSTANTIATE_FLOAT
#undef LAMINA_INSTANTIATE

bool CudaBackend::built() { return false; }
int CudaBackend::count() { return 0; }
std::string CudaBackend::why_none() { return "built without CUDA; configure with --preset cuda"; }
std::string CudaBackend::name(int) { fail_no_cuda(); }
void CudaBackend::use(int) { fail_no_cuda(); }
void* CudaBackend::allocate(int64_t) { fail_no_cuda(); }
void CudaBackend::release(void*) noexcept {}
std::pair<int64_t, int64_t> CudaBackend::memory() { fail_no_cuda(); }
void CudaBackend::synchronize() { fail_no_cuda(); }
void CudaBackend::begin_capture() { fail_no_cuda(); }
void* CudaBackend::end_capture() { fail_no_cuda(); }
void CudaBackend::abandon_capture() noexcept {}
void CudaBackend::launch_graph(void*) { fail_no_cuda(); }
void CudaBackend::drop_graph(void*) noexcept {}
void CudaBackend::allow_tf32(bool) {}

}  // namespace lamina::kernels
