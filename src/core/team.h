#pragma once
// Threads that walk many short phases together, where a parallel_for for each would cost more than the phase.

#include <cstdint>
#include <type_traits>

namespace lamina::detail {

class Team {
 public:
  Team(int index, int size) : index_(index), size_(size) {}
  int index() const { return index_; }
  int size() const { return size_; }
  /// Returns when every member has called it.
  void wait() const;

 private:
  int index_, size_;
};

using TeamFn = void (*)(void* context, const Team& team);
void run_team(int64_t most, TeamFn fn, void* context);

/// Calls f(team) on each member of a team of at most `most` threads (one where the caller is in a parallel loop already), denormals flushed to zero
/// as in parallel_for. f throws nothing, and its results do not depend on the team's size.
template <class F>
void parallel_team(int64_t most, F&& f) {
  run_team(
      most, [](void* context, const Team& team) { (*static_cast<std::remove_reference_t<F>*>(context))(team); }, &f);
}

}  // namespace lamina::detail
