#pragma once
// The StepState of an optimiser, in the memory of the device where its parameters are. Private to src/optim.

#include <lamina/core/tensor.h>

#include <cstddef>

#include "kernels/kernels.h"

namespace lamina::optim {

class StepMemory {
 public:
  /// On this device, with the numbers as given when it is new.
  void prepare(Device device, kernels::StepState start) {
    if (bytes_.defined() && bytes_.device() == device) return;
    if (bytes_.defined()) start = read();
    bytes_ = Tensor::empty({sizeof(kernels::StepState)}, DType::u8, device);
    write(start);
  }
  void write(const kernels::StepState& state) {
    copy_in(&state, 0, sizeof state);
    lr_ = state.lr;
  }
  /// Queued; where it is the same as before, nothing is.
  void set_lr(double lr) {
    if (lr == lr_) return;
    copy_in(&lr, offsetof(kernels::StepState, lr), sizeof lr);
    lr_ = lr;
  }
  /// Waits for the device.
  kernels::StepState read() const {
    kernels::StepState state;
    kernels::move(bytes_.device())->copy(sizeof state, bytes_.raw_data(), &state);
    return state;
  }

  bool defined() const { return bytes_.defined(); }
  void forget() { bytes_ = Tensor(); }
  /// For kernels; on the CPU for anyone.
  kernels::StepState* state() { return static_cast<kernels::StepState*>(bytes_.mutable_raw_data()); }

 private:
  void copy_in(const void* from, size_t at, size_t size) {
    kernels::move(bytes_.device())->copy(static_cast<int64_t>(size), from, static_cast<char*>(bytes_.mutable_raw_data()) + at);
  }

  Tensor bytes_;
  double lr_ = 0;
};

}  // namespace lamina::optim
