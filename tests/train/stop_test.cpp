#include <lamina/train/stop.h>

#include <csignal>

#include <sys/wait.h>
#include <unistd.h>

#include "support/catch.h"

using namespace lamina::train;

namespace {

// How a child that does `work` ends: its exit code, or minus the signal that killed it.
template <class F>
int ends(F&& work) {
  const pid_t child = fork();
  if (child == 0) {
    for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, SIG_DFL);  // Catch2 has handlers of its own
    work();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace

TEST_CASE("the first signal only asks, the second ends the process at once (G04)", "[train][stop]") {
  for (const int signal : {SIGINT, SIGTERM}) {
    CHECK(ends([&] {
            const StopOnSignal signals;
            std::raise(signal);
            if (stop_signal() != signal) _exit(1);
          }) == 0);
    CHECK(ends([&] {
            const StopOnSignal signals;
            std::raise(signal);
            std::raise(signal);
          }) == 128 + signal);
    CHECK(ends([&] {
            const StopOnSignal signals;
            std::raise(signal == SIGINT ? SIGTERM : SIGINT);
            std::raise(signal);
          }) == 128 + signal);
    // Without the guard, and after it, the system's own way.
    CHECK(ends([&] {
            { const StopOnSignal signals; }
            std::raise(signal);
          }) == -signal);
  }
}

TEST_CASE("a guard starts without a signal and forgets the one it saw", "[train][stop]") {
  CHECK(stop_signal() == 0);
  {
    const StopOnSignal signals;
    CHECK(stop_signal() == 0);
    std::raise(SIGINT);
    CHECK(stop_signal() == SIGINT);
  }
  CHECK(stop_signal() == 0);
  const StopOnSignal again;
  CHECK(stop_signal() == 0);
}
