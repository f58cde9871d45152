// Copies and fills, and the host memory that they may use late: what is pinned is read or written when the stream gets there, what is not at the
// call.

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "cuda_emulator/heap.h"
#include "cuda_emulator/report.h"
#include "cuda_emulator/streams.h"

using namespace cuda_emulator;

namespace {

cudaMemcpyKind direction(const void* to, const void* from) {
  const bool to_device = is_device_address(to), from_device = is_device_address(from);
  return to_device ? (from_device ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice)
                   : (from_device ? cudaMemcpyDeviceToHost : cudaMemcpyHostToHost);
}

void check_direction(const void* to, const void* from, cudaMemcpyKind kind, const char* operation) {
  if (kind != cudaMemcpyDefault && kind != direction(to, from)) violation(std::string(operation) + ": the direction does not fit the pointers");
}

// `pinned`: host memory was so when the copy was queued, and must still be.
void copy_now(void* to, const void* from, size_t bytes, bool pinned, const char* operation) {
  const bool to_device = is_device_address(to), from_device = is_device_address(from);
  const auto offset = [](const Memory& memory, const void* p) { return reinterpret_cast<uintptr_t>(p) - memory.address(); };
  Memory* const target = to_device ? &memory_at(to, bytes, operation) : nullptr;
  Memory* const source = from_device ? &memory_at(from, bytes, operation) : nullptr;
  for (const void* const host : {target ? nullptr : static_cast<const void*>(to), source ? nullptr : from})
    if (host && pinned && !is_pinned(host, bytes)) violation(fmt::format("{}: the host memory was freed before the copy was done", operation));
  const void* const bytes_from = source ? source->data() + offset(*source, from) : from;
  void* const bytes_to = target ? target->data() + offset(*target, to) : to;
  if (source && !target) source->host_read(offset(*source, from), bytes, operation);
  if (target && source) target->copy_shadow(offset(*target, to), *source, offset(*source, from), bytes);
  if (target && !source) target->host_write(offset(*target, to), bytes);
  std::memmove(bytes_to, bytes_from, bytes);
}

void fill_now(void* to, int value, size_t bytes, const char* operation) {
  Memory& memory = memory_at(to, bytes, operation);
  const size_t offset = reinterpret_cast<uintptr_t>(to) - memory.address();
  memory.host_write(offset, bytes);
  std::memset(memory.data() + offset, value, bytes);
}

// A copy of rows on the host's side of which nothing is read or written before `height` rows of `width` bytes, each `pitch` after the other.
struct Rows {
  void* to;
  size_t to_pitch;
  const void* from;
  size_t from_pitch, width, height;

  template <class F>
  void each(F&& f) const {
    for (size_t row = 0; row < height; ++row)
      f(static_cast<unsigned char*>(to) + row * to_pitch, static_cast<const unsigned char*>(from) + row * from_pitch);
  }
};

cudaError_t copy(const Rows& rows, cudaMemcpyKind kind, cudaStream_t handle, const char* operation) {
  const std::lock_guard lock(one_at_a_time());
  if (rows.width == 0 || rows.height == 0) return cudaSuccess;
  check_direction(rows.to, rows.from, kind, operation);
  CUstream_st* const stream = find_stream(handle);
  if (!stream) return remember(cudaErrorInvalidResourceHandle);
  const bool host_to = !is_device_address(rows.to), host_from = !is_device_address(rows.from);
  bool pinned = true;
  rows.each([&](const void* to, const void* from) {
    pinned = pinned && (!host_to || is_pinned(to, rows.width)) && (!host_from || is_pinned(from, rows.width));
  });
  const auto run = [rows, pinned, operation] { rows.each([&](void* to, const void* from) { copy_now(to, from, rows.width, pinned, operation); }); };
  if (pinned || when(*stream) == When::now) return submit(handle, run);
  if (const cudaError_t status = invalidate(*stream); status != cudaSuccess) return remember(status);
  if (host_to) {
    finish(*stream);
    return submit(handle, run) == cudaSuccess ? cudaStreamSynchronize(handle) : cudaPeekAtLastError();
  }
  // The source is the caller's again when this returns.
  auto staged = std::make_shared<std::vector<unsigned char>>();
  rows.each([&](void*, const unsigned char* from) { staged->insert(staged->end(), from, from + rows.width); });
  return submit(handle, [rows, staged, operation] {
    Rows from_staged = rows;
    from_staged.from = staged->data();
    from_staged.from_pitch = rows.width;
    from_staged.each([&](void* to, const void* from) { copy_now(to, from, rows.width, false, operation); });
  });
}

}  // namespace

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  const std::lock_guard lock(one_at_a_time());
  if (const cudaError_t status = refuse_in_capture(); status != cudaSuccess) return status;
  if (bytes == 0) return cudaSuccess;
  check_direction(to, from, kind, "cudaMemcpy");
  finish_blocking();
  return submit(nullptr, [] {}) == cudaSuccess ? (copy_now(to, from, bytes, false, "cudaMemcpy"), cudaSuccess) : cudaPeekAtLastError();
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return copy({to, bytes, from, bytes, bytes, 1}, kind, stream, "cudaMemcpyAsync");
}
cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, size_t bytes, cudaStream_t stream) {
  const std::lock_guard lock(one_at_a_time());
  if (bytes == 0) return cudaSuccess;
  for (const auto& [p, device] : {std::pair<const void*, int>{to, to_device}, {from, from_device}})
    if (memory_at(p, bytes, "cudaMemcpyPeerAsync").device() != device) return remember(cudaErrorInvalidValue);
  return copy({to, bytes, from, bytes, bytes, 1}, cudaMemcpyDeviceToDevice, stream, "cudaMemcpyPeerAsync");
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
  if (width > to_pitch || width > from_pitch) return remember(cudaErrorInvalidPitchValue);
  return copy({to, to_pitch, from, from_pitch, width, height}, kind, stream, "cudaMemcpy2DAsync");
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  const std::lock_guard lock(one_at_a_time());
  if (const cudaError_t status = refuse_in_capture(); status != cudaSuccess || bytes == 0) return status;
  return submit(nullptr, [=] { fill_now(to, value, bytes, "cudaMemset"); });
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  const std::lock_guard lock(one_at_a_time());
  if (bytes == 0) return cudaSuccess;
  return submit(stream, [=] { fill_now(to, value, bytes, "cudaMemsetAsync"); });
}
