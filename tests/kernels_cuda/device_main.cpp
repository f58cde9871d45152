// The tests of CUDA kernels on a real device: says so and ends with 77 where there is none.
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_session.hpp>
#else
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#endif
#include <cuda_runtime.h>

#include <cstdio>

int main(int argc, char** argv) {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status != cudaSuccess || devices == 0) {
    std::printf("cuda_tests: nothing was run: %s\n", status != cudaSuccess ? cudaGetErrorString(status) : "no device");
    return 77;
  }
  return Catch::Session().run(argc, argv);
}
