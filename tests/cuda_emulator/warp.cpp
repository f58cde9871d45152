#include "cuda_emulator/warp.h"

#include <fmt/format.h>

#include <algorithm>

#include "cuda_emulator/report.h"

namespace cuda_emulator {

namespace {

// The lane whose value `lane` gets, by the CUDA C++ programming guide, section "Warp Shuffle Functions": out of the segment, its own.
int source_lane(const WarpCall& call, int lane) {
  const int first = lane / call.width * call.width, end = first + call.width;
  switch (call.kind) {
    case WarpKind::index: return first + (call.argument & (call.width - 1));
    case WarpKind::up: return lane - call.argument >= first ? lane - call.argument : lane;
    case WarpKind::down: return lane + call.argument < end ? lane + call.argument : lane;
    default: return (lane ^ call.argument) < end ? lane ^ call.argument : lane;
  }
}

}  // namespace

uint32_t ballot(const std::array<const WarpCall*, lanes>& calls) {
  uint32_t votes = 0;
  for (int lane = 0; lane < lanes; ++lane)
    if (calls[static_cast<size_t>(lane)] && calls[static_cast<size_t>(lane)]->value != 0) votes |= uint32_t{1} << lane;
  return votes;
}

uint64_t warp_result(const std::array<const WarpCall*, lanes>& calls, uint32_t votes, int lane) {
  const WarpCall& call = *calls[static_cast<size_t>(lane)];
  switch (call.kind) {
    case WarpKind::sync: return 0;
    case WarpKind::ballot: return votes;
    case WarpKind::any: return votes != 0 ? 1 : 0;
    case WarpKind::all: return votes == call.mask ? 1 : 0;
    default: break;
  }
  if (call.width <= 0 || call.width > lanes || (call.width & (call.width - 1)) != 0)
    violation(fmt::format("{}: width {} is not a power of two up to {}", call.name, call.width, lanes));
  const int source = source_lane(call, lane);
  const WarpCall* const from = calls[static_cast<size_t>(source)];
  if (!from) violation(fmt::format("{}: lane {} reads lane {}, which its mask {:#010x} lacks", call.name, lane, source, call.mask));
  return from->value;
}

void synchronise(WarpClocks& clocks, uint32_t mask) {
  std::array<uint32_t, lanes> joined{};
  ++clocks.time;
  for (size_t lane = 0; lane < lanes; ++lane) {
    if ((mask >> lane & 1) == 0) continue;
    for (size_t other = 0; other < lanes; ++other) joined[other] = std::max(joined[other], clocks.known[lane][other]);
  }
  for (size_t lane = 0; lane < lanes; ++lane)
    if ((mask >> lane & 1) != 0) joined[lane] = clocks.time;
  for (size_t lane = 0; lane < lanes; ++lane)
    if ((mask >> lane & 1) != 0) clocks.known[lane] = joined;
}

}  // namespace cuda_emulator
