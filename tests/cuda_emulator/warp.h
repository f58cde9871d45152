#pragma once
// The results of warp operations, given what every lane of the mask asked for.

#include <array>
#include <cstdint>

#include "cuda_emulator/executor.h"

namespace cuda_emulator {

/// The lanes that voted yes; calls[lane] is null for lanes outside the mask.
uint32_t ballot(const std::array<const WarpCall*, lanes>& calls);

/// What `lane` gets, `votes` being the ballot; throws where CUDA leaves it undefined.
uint64_t warp_result(const std::array<const WarpCall*, lanes>& calls, uint32_t votes, int lane);

/// __syncwarp: the lanes of the mask are ordered after all that any of them is ordered after.
void synchronise(WarpClocks& clocks, uint32_t mask);

}  // namespace cuda_emulator
