#include "cuda_emulator/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "cuda_emulator/report.h"

namespace cuda_emulator {

namespace {

uint32_t bit(int lane) { return uint32_t{1} << lane; }

Stamp stamp() { return {now.phase, now.warp->time, static_cast<uint16_t>(now.thread)}; }

bool in_other_block(const Stamp& s) { return s.phase >= now.launch_start && s.phase < now.block_start; }

bool lane_ordered(int lane, uint32_t time) { return now.warp->known[static_cast<size_t>(now.thread % lanes)][static_cast<size_t>(lane)] > time; }

// Whether what was stamped is certain to have happened before now.
bool ordered(const Stamp& s) {
  if (s.phase < now.launch_start) return true;
  if (s.phase != now.phase) return s.phase >= now.block_start;
  if (s.thread == now.thread) return true;
  return s.thread / lanes == now.thread / lanes && lane_ordered(s.thread % lanes, s.time);
}

}  // namespace

Memory::Memory(Kind kind, std::string name, uintptr_t address, size_t size)
    : kind_(kind), name_(std::move(name)), address_(address), size_(size), data_(new unsigned char[std::max<size_t>(size, 1)]) {
  std::memset(data_.get(), 0xFF, size);  // NaN, should anybody get to see it
  while (size_ % granule_ != 0) granule_ /= 2;
  elements_.resize(size_ / granule_);
}

void Memory::release() {
  alive_ = false;
  data_.reset();
  elements_ = {};
}

// Makes [offset, offset + bytes) a whole number of elements, by splitting elements if need be.
void Memory::refine(size_t offset, size_t bytes) {
  const size_t common = offset | bytes;
  size_t granule = granule_;
  while (common % granule != 0) granule /= 2;
  if (granule == granule_) return;
  const size_t pieces = granule_ / granule;
  std::vector<Element> split(elements_.size() * pieces);
  for (size_t i = 0; i < split.size(); ++i) split[i] = elements_[i / pieces];
  elements_ = std::move(split);
  granule_ = granule;
}

void Memory::access(size_t offset, size_t bytes, ElementCheck check, const char* verb) {
  if (((offset | bytes) & (granule_ - 1)) != 0) refine(offset, bytes);
  for (size_t i = offset / granule_; i < (offset + bytes) / granule_; ++i) {
    if (kind_ == Kind::shared && elements_[i].write.phase < now.block_start) elements_[i] = {};  // of another block
    (this->*check)(elements_[i], offset / bytes, bytes, verb);
  }
}

void Memory::race(const char* verb, size_t index, size_t bytes, const char* other_verb, const Stamp& other) {
  const int x = other.thread;
  violation(fmt::format("race on element {} ({} bytes each) of {}: this {} and the {} by thread {} of {} are not ordered; this thread is at {}",
                        index, bytes, name_, verb, other_verb, x, describe_phase(other.phase), describe_phase(now.phase)));
}

void Memory::check_writers(const Element& e, size_t index, size_t bytes, const char* verb) {
  if (!ordered(e.write)) race(verb, index, bytes, "write", e.write);
  const bool atomics_unordered = (e.atomic_threads && e.write.phase == now.phase) || (e.atomic_blocks && e.write.phase >= now.launch_start);
  if (atomics_unordered) violation(fmt::format("race on element {} ({} bytes each) of {}: this {} and atomic writes", index, bytes, name_, verb));
}

void Memory::read_element(Element& e, size_t index, size_t bytes, const char* verb) {
  if (e.write.phase == 0) violation(fmt::format("{} of element {} ({} bytes each) of {}, which was never written", verb, index, bytes, name_));
  check_writers(e, index, bytes, verb);
  const uint32_t me = bit(now.thread % lanes);
  if (e.read.phase != now.phase) {
    e.several_blocks = in_other_block(e.read) || (e.several_blocks && e.read.phase >= now.launch_start);
    e.several_warps = false;
    e.read_lanes = me;
  } else if (e.read.thread / lanes != now.thread / lanes) {
    e.several_warps = true;
    return;
  } else {
    // Readers that are ordered before this one need no place of their own: whoever is ordered after this one is ordered after them.
    bool all_ordered = !e.several_warps;
    for (int lane = 0; lane < lanes && all_ordered; ++lane)
      if ((e.read_lanes & bit(lane) & ~me) != 0) all_ordered = lane_ordered(lane, e.read.time);
    e.read_lanes = all_ordered ? me : e.read_lanes | me;
  }
  e.read = stamp();
}

void Memory::check_readers(const Element& e, size_t index, size_t bytes, const char* verb) {
  if (e.read.phase < now.launch_start) return;
  if (in_other_block(e.read)) race(verb, index, bytes, "read", e.read);
  if (e.several_blocks)
    violation(fmt::format("race on element {} ({} bytes each) of {}: this {} and a read by another block", index, bytes, name_, verb));
  if (e.read.phase != now.phase) return;
  if (e.several_warps || e.read.thread / lanes != now.thread / lanes) {
    Stamp other = e.read;
    if (other.thread / lanes != now.thread / lanes) race(verb, index, bytes, "read", other);
    violation(fmt::format("race on element {} ({} bytes each) of {}: this {} and a read by another warp", index, bytes, name_, verb));
  }
  for (int lane = 0; lane < lanes; ++lane) {
    if ((e.read_lanes & bit(lane)) == 0 || lane == now.thread % lanes || lane_ordered(lane, e.read.time)) continue;
    race(verb, index, bytes, "read", {e.read.phase, e.read.time, static_cast<uint16_t>(e.read.thread / lanes * lanes + lane)});
  }
}

void Memory::write_element(Element& e, size_t index, size_t bytes, const char* verb) {
  check_writers(e, index, bytes, verb);
  check_readers(e, index, bytes, verb);
  e = {};
  e.write = stamp();
}

void Memory::atomic_element(Element& e, size_t index, size_t bytes, const char* verb) {
  if (e.write.phase == 0) violation(fmt::format("{} of element {} ({} bytes each) of {}, which was never written", verb, index, bytes, name_));
  if (!e.atomic_write) check_writers(e, index, bytes, verb);
  check_readers(e, index, bytes, verb);
  const bool same_launch = e.atomic_write && e.write.phase >= now.launch_start;
  e.atomic_blocks = same_launch && (e.atomic_blocks || in_other_block(e.write));
  e.atomic_threads = same_launch && e.write.phase == now.phase && (e.atomic_threads || !ordered(e.write));
  e.atomic_write = true;
  e.write = stamp();
}

void Memory::host_write(size_t offset, size_t bytes) {
  if (bytes == 0) return;
  refine(offset, bytes);
  Element element;
  element.write.phase = 1;
  std::fill_n(elements_.begin() + static_cast<std::ptrdiff_t>(offset / granule_), bytes / granule_, element);
}

void Memory::host_read(size_t offset, size_t bytes, const char* operation) {
  if (bytes == 0) return;
  refine(offset, bytes);
  for (size_t i = offset / granule_; i < (offset + bytes) / granule_; ++i)
    if (elements_[i].write.phase == 0) violation(fmt::format("{}: byte {} of {} was never written", operation, i * granule_, name_));
}

void Memory::copy_shadow(size_t offset, Memory& from, size_t from_offset, size_t bytes) {
  if (bytes == 0) return;
  refine(offset, bytes);
  from.refine(from_offset, bytes);
  refine(0, from.granule_);
  from.refine(0, granule_);
  for (size_t i = 0; i < bytes / granule_; ++i) {
    Element element;
    element.write.phase = from.elements_[from_offset / granule_ + i].write.phase != 0 ? 1 : 0;
    elements_[offset / granule_ + i] = element;
  }
}

}  // namespace cuda_emulator
