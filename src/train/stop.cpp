#include <lamina/train/stop.h>

#include <csignal>

#include <unistd.h>

namespace lamina::train {
namespace {

volatile std::sig_atomic_t received = 0;
struct sigaction previous_interrupt, previous_terminate;

// Only what is safe in a handler: no output, no locks, no allocation.
void on_signal(int signal) {
  if (received) _exit(128 + signal);
  received = signal;
}

}  // namespace

StopOnSignal::StopOnSignal() {
  received = 0;
  struct sigaction action = {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;  // a write in progress goes on
  sigaction(SIGINT, &action, &previous_interrupt);
  sigaction(SIGTERM, &action, &previous_terminate);
}

StopOnSignal::~StopOnSignal() {
  sigaction(SIGINT, &previous_interrupt, nullptr);
  sigaction(SIGTERM, &previous_terminate, nullptr);
  received = 0;
}

int stop_signal() { return received; }

}  // namespace lamina::train
