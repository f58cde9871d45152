#pragma once
// Ctrl-C: the first SIGINT or SIGTERM asks a training loop to finish its step, save and return; a second one ends the process at once.

namespace lamina::train {

/// Installs the handlers while it lives (for programs: one, in main). A Trainer looks at stop_signal() after each step.
class StopOnSignal {
 public:
  StopOnSignal();
  ~StopOnSignal();
  StopOnSignal(const StopOnSignal&) = delete;
  StopOnSignal& operator=(const StopOnSignal&) = delete;
};

/// The signal that arrived, or 0. A program that stops for it exits with 128 + the signal: 130 for SIGINT, 143 for SIGTERM.
int stop_signal();

}  // namespace lamina::train
