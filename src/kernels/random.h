#pragma once
// Philox4x32-10 streams: block b of stream `key` is philox(counter = {b, 0}, key), four 32-bit numbers. Element i of a 32-bit kind uses number i % 4
// of block counter + i / 4; of a 64-bit kind (two numbers each) the pair i % 2 of block counter + i / 2.

#include <cstdint>
#include <utility>
#include <vector>

namespace lamina::kernels {

/// A step that a CUDA graph runs again, for the length of its capture, on this thread: where its streams begin is then read from device memory.
class RepeatedStep {
 public:
  struct Stream {
    uint64_t key;
    uint64_t start;           // its counter where the step begins, at the capture
    const int64_t* position;  // the same at each run, in the device's memory
  };
  explicit RepeatedStep(std::vector<Stream> streams) : streams_(std::move(streams)), outer_(innermost) { innermost = this; }
  ~RepeatedStep() { innermost = outer_; }
  RepeatedStep(const RepeatedStep&) = delete;
  RepeatedStep& operator=(const RepeatedStep&) = delete;

  /// Null where there is none of this key.
  const Stream* find(uint64_t key) const {
    for (const Stream& stream : streams_)
      if (stream.key == key) return &stream;
    return nullptr;
  }
  /// Of this thread, or null.
  static const RepeatedStep* current() { return innermost; }

 private:
  static inline thread_local const RepeatedStep* innermost = nullptr;
  std::vector<Stream> streams_;
  const RepeatedStep* outer_;
};

/// T = float or double (bernoulli also uint8_t).
template <class T>
struct RandomKernels {
  virtual ~RandomKernels() = default;

  /// In [low, high): float from 24 bits of a 32-bit number, double from 53 bits of a pair.
  virtual void uniform(uint64_t key, uint64_t counter, int64_t n, double low, double high, T* y) const = 0;
  /// Box-Muller in double on 53-bit uniforms; element i uses block counter + i (both uniforms), the cosine branch.
  virtual void normal(uint64_t key, uint64_t counter, int64_t n, double mean, double std, T* y) const = 0;
  /// 1 where the 32-bit number is below `threshold` (p * 2^32), else 0.
  virtual void bernoulli(uint64_t key, uint64_t counter, int64_t n, uint64_t threshold, T* y) const = 0;
  /// y = bit ? x * scale : 0 with the same bits as bernoulli (dropout; the backward pass is the same call on dy). y may be x.
  virtual void dropout(uint64_t key, uint64_t counter, int64_t n, uint64_t threshold, double scale, const T* x, T* y) const = 0;
};

}  // namespace lamina::kernels
