#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_session.hpp>
#else
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#endif

#include <cstdio>

#include <lamina/core/memory.h>

#include "support/device.h"

// A run for a device that is not there says so and ends with 77, which ctest calls skipped.
int main(int argc, char** argv) {
  try {
    lamina::test::device();
  } catch (const std::exception& error) {
    std::printf("nothing was run: %s\n", error.what());
    return 77;
  }
  const int failed = Catch::Session().run(argc, argv);
  // What is still there is a leak. (Tests of kernels use a GPU whatever the device of the run is.)
  for (int i = 0; i < lamina::cuda_device_count(); ++i) {
    lamina::release_cached_memory(lamina::Device::cuda(i));
    lamina::synchronize(lamina::Device::cuda(i));
  }
  return failed;
}
