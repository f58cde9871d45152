#pragma once
// Stands in for NVIDIA's header of this name when kernels are compiled for the CPU: the qualifiers, what device code may call, and the part of the
// runtime API that lamina uses. What is queued on a stream is done at once, unless CUDA_EMULATOR_ASYNC=1 delays it for as long as CUDA allows.

#define CUDA_EMULATOR 1
#define CUDART_VERSION 12040

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static  // the type is shared_array<T, n>, which starts anew in every block

#include "cuda_emulator/device_functions.h"
#include "cuda_emulator/runtime_api.h"
