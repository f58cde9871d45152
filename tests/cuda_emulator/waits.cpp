// Barriers, warp operations, and what is wrong when threads wait for ever.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "cuda_emulator/block.h"
#include "cuda_emulator/report.h"
#include "cuda_emulator/warp.h"

namespace cuda_emulator {

namespace {

bool same_place(const Place& a, const Place& b) {
  if (std::memcmp(&a, &b, sizeof a) == 0) return true;  // usually they are pointers to one text
  if (a.line() != b.line() || a.column() != b.column()) return false;
  return a.file_name() == b.file_name() || std::string_view(a.file_name()) == b.file_name();
}

}  // namespace

int Executor::barrier(Vote vote, int value, Place where) {
  Thread& me = current();
  me.where = where;
  me.vote = vote;
  if (waiting_ == 0) vote_any_ = vote_count_ = 0;
  vote_any_ |= value != 0;
  vote_count_ += value != 0;
  if (++waiting_ < threads_.size()) {
    wait(State::at_barrier);
  } else {
    me.state = State::at_barrier;
    release_barrier();
    wait(State::ready);
  }
  return static_cast<int>(me.result);
}

void Executor::release_barrier() {
  const Thread& me = current();
  for (const Thread& thread : threads_)
    if (!same_place(thread.where, me.where) || thread.vote != me.vote)
      violation(fmt::format("divergent barrier: this thread {}, and thread {} {}", waits_for(me), text(thread.index), waits_for(thread)));
  const auto n = static_cast<int>(threads_.size());
  const int result[] = {0, vote_any_, vote_count_ == n, vote_count_};
  for (Thread& thread : threads_) {
    thread.state = State::ready;
    thread.result = static_cast<uint64_t>(result[static_cast<int>(thread.vote)]);
  }
  waiting_ = 0;
  new_phase();
  const std::vector<int>& next = order(threads_.size());
  for (size_t i = 0; i < threads_.size(); ++i) queue_.push(next[i]);
}

std::span<Thread> Executor::warp_of(const Thread& thread) {
  const size_t first = static_cast<size_t>(&thread - threads_.data()) / lanes * lanes;
  return {threads_.data() + first, std::min<size_t>(lanes, threads_.size() - first)};
}

uint64_t Executor::warp_operation(const WarpCall& call) {
  Thread& me = current();
  const std::span<Thread> warp = warp_of(me);
  const auto number = static_cast<size_t>(now.thread / lanes);
  const int lane = now.thread % lanes;
  me.call = &call;
  if ((call.mask >> lane & 1) == 0)
    violation(fmt::format("{} at {}: its mask {:#010x} lacks this lane, {}", call.name, text(call.where), call.mask, lane));
  uint32_t& waiting = lanes_waiting_[number];
  if (((waiting | uint32_t{1} << lane) & call.mask) != call.mask) {
    waiting |= uint32_t{1} << lane;
    wait(State::in_warp_operation);
    return me.result;
  }
  const auto calls = matching_calls(call, warp, lane);
  waiting &= ~call.mask;
  if (call.kind == WarpKind::sync) {
    synchronise(clocks_[number], call.mask);
    clocks_moved_ = true;
  }
  const uint32_t votes = ballot(calls);
  const std::vector<int>& next = order(warp.size());
  for (size_t i = 0; i < warp.size(); ++i) {
    const int other = next[i];
    if ((call.mask >> other & 1) == 0) continue;
    Thread& t = warp[static_cast<size_t>(other)];
    t.result = warp_result(calls, votes, other);
    t.state = State::ready;
    if (other != lane) queue_.push(static_cast<int>(&t - threads_.data()));
  }
  return me.result;
}

// What each lane of the mask asks for; all must be the same operation.
std::array<const WarpCall*, lanes> Executor::matching_calls(const WarpCall& call, std::span<Thread> warp, int lane) {
  std::array<const WarpCall*, lanes> calls{};
  for (int other = 0; other < lanes; ++other) {
    if ((call.mask >> other & 1) == 0) continue;
    const WarpCall& its = *warp[static_cast<size_t>(other)].call;
    calls[static_cast<size_t>(other)] = &its;
    if (other != lane && (its.mask != call.mask || its.kind != call.kind || !same_place(its.where, call.where)))
      violation(fmt::format("{} at {} with mask {:#010x} meets {} at {} with mask {:#010x} of lane {}", call.name, text(call.where), call.mask,
                            its.name, text(its.where), its.mask, other));
  }
  return calls;
}

std::string Executor::waits_for(const Thread& thread) const {
  if (thread.state == State::done) return "has left the kernel";
  if (thread.state == State::at_barrier) return "waits in __syncthreads at " + text(thread.where);
  return fmt::format("waits in {} at {} with mask {:#010x}", thread.call->name, text(thread.call->where), thread.call->mask);
}

// Some threads wait and none can go on.
void Executor::report_deadlock() {
  const auto stuck = std::find_if(threads_.begin(), threads_.end(), [](const Thread& t) { return t.state == State::in_warp_operation; });
  const auto waits = std::find_if(threads_.begin(), threads_.end(), [](const Thread& t) { return t.state == State::at_barrier; });
  const bool in_warp = stuck != threads_.end();
  Thread& me = in_warp ? *stuck : *waits;
  make_current(me);
  const Thread* other = nullptr;
  const std::span<Thread> warp = warp_of(me);
  if (in_warp) {
    if (warp.size() < lanes && me.call->mask >> warp.size() != 0) {
      abandon();
      violation(fmt::format("{} at {}: its mask {:#010x} names lanes that this block of {} threads lacks", me.call->name, text(me.call->where),
                            me.call->mask, threads_.size()));
    }
    for (size_t lane = 0; lane < warp.size() && !other; ++lane) {
      const bool waiting_too = warp[lane].state == State::in_warp_operation && warp[lane].call->mask == me.call->mask;
      if ((me.call->mask >> lane & 1) != 0 && !waiting_too) other = &warp[lane];
    }
  } else {
    other = &*std::find_if(threads_.begin(), threads_.end(), [](const Thread& t) { return t.state != State::at_barrier; });
  }
  const std::string message = fmt::format("{}: this thread {}, and thread {} {}", in_warp ? "wrong warp mask or divergent warp" : "divergent barrier",
                                          waits_for(me), text(other->index), waits_for(*other));
  abandon();
  violation(message);
}

int barrier(Vote vote, int value, Place where) { return executor().barrier(vote, value, where); }
uint64_t warp_operation(const WarpCall& call) { return executor().warp_operation(call); }

}  // namespace cuda_emulator
