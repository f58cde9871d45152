#include "cuda_emulator/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "cuda_emulator/pointer.h"
#include "cuda_emulator/report.h"

namespace cuda_emulator {

namespace {

uint32_t bit(int lane) { return uint32_t{1} << lane; }

bool in_other_block(const Stamp& s) { return s.phase >= now.launch_start && s.phase < now.block_start; }

bool lane_ordered(int lane, uint32_t time) { return now.warp->known[static_cast<size_t>(now.thread % lanes)][static_cast<size_t>(lane)] > time; }

// Whether what was stamped is certain to have happened before now.
bool ordered(const Stamp& s) {
  if (s.phase < now.launch_start) return true;
  if (s.phase != now.phase) return s.phase >= now.block_start;
  if (s.thread == now.thread) return true;
  return s.thread / lanes == now.thread / lanes && lane_ordered(s.thread % lanes, s.time);
}

// The common cases, told without a look at clocks: of the writes of this element, and of its reads, none is unordered with this thread.
bool writes_are_past(const Element& e) {
  if (e.write_phase < now.launch_start) return true;
  return e.write_phase >= now.block_start && (e.write_phase < now.phase || e.write_thread() == now.thread) && !e.was(Element::atomic_write);
}
bool reads_are_past(const Element& e) {
  if (e.read_phase < now.launch_start) return true;
  if (e.read_phase < now.block_start || e.by(Element::several_blocks)) return false;
  return e.read_phase < now.phase || (e.reader == now.thread && e.read_lanes == bit(now.thread % lanes));
}

void stamp_read(Element& e, int flags) {
  e.read_phase = now.phase;
  e.read_time = now.warp->time;
  e.reader = static_cast<uint16_t>(now.thread | flags);
}
void stamp_write(Element& e, int flags = 0) {
  e.write_phase = now.phase;
  e.write_time = now.warp->time;
  e.writer = static_cast<uint16_t>(now.thread | flags);
}
void clear_reads(Element& e) {
  e.read_phase = e.read_time = e.read_lanes = 0;
  e.reader = 0;
}

std::string not_ordered(const char* verb, const Stamp& other) {
  return fmt::format("the {} by thread {} of {} are not ordered; this thread is at {}", verb, int{other.thread}, describe_phase(other.phase),
                     describe_phase(now.phase));
}

}  // namespace

Memory::Memory(Kind kind, const char* what, int64_t number, uintptr_t address, size_t size, int device)
    : kind_(kind),
      what_(what),
      number_(number),
      address_(address),
      size_(size),
      device_(device),
      data_(new unsigned char[std::max<size_t>(size, 1)]) {}

std::string Memory::name() const {
  return number_ > 0 ? fmt::format("{} #{} ({} bytes)", what_, number_, size_) : fmt::format("{} ({} bytes)", what_, size_);
}

void Memory::release() {
  data_.reset();
  elements_ = {};
  mask_ = all_bits;
}

// What a block finds in shared memory is told from what it wrote by the phase, so elements of earlier launches may stay.
void Memory::resize(size_t size) {
  if (size > size_) {
    data_ = std::make_unique_for_overwrite<unsigned char[]>(size);
    elements_.clear();
    mask_ = all_bits;
  }
  size_ = size;
}

// Makes [offset, offset + bytes) a whole number of elements, by making or splitting them.
void Memory::make_granule(size_t offset, size_t bytes) {
  const auto shift = static_cast<unsigned>(std::countr_zero(offset | bytes));
  if (elements_.empty()) {
    shift_ = std::min(3U, shift);
    Element element;
    element.write_phase = all_written_ ? 1 : 0;
    elements_.assign((size_ >> shift_) + 1, element);
  } else if (shift < shift_) {
    std::vector<Element> split(elements_.size() << (shift_ - shift));
    for (size_t i = 0; i < split.size(); ++i) split[i] = elements_[i >> (shift_ - shift)];
    elements_ = std::move(split);
    shift_ = shift;
  }
  mask_ = (size_t{1} << shift_) - 1;
}

// The shortest way to the elements of an access; it is the heart of every load and store.
template <class F>
[[gnu::always_inline]] inline void Memory::each(size_t offset, size_t bytes, size_t unit, F&& f) {
  if (((offset | unit) & mask_) != 0) [[unlikely]]
    make_granule(offset, unit);
  Element* e = begin(offset);
  Element* const last = e + (bytes >> shift_);
  do {
    if (kind_ == Kind::shared && e->write_phase < now.block_start) *e = {};  // of another block
    f(*e);
  } while (++e != last);
}

void Memory::read(size_t offset, size_t bytes, size_t unit) {
  each(offset, bytes, unit, [&](Element& e) {
    const uint32_t me = bit(now.thread % lanes);
    const bool again = e.reader == now.thread && e.read_phase == now.phase && e.read_lanes == me;
    const bool new_phase =
        e.read_phase < now.launch_start || (e.read_phase >= now.block_start && e.read_phase < now.phase && !e.by(Element::several_blocks));
    if (e.write_phase == 0 || !writes_are_past(e) || !(new_phase || again)) return read_element(e, unit);
    e.read_lanes = me;
    stamp_read(e, 0);
  });
}

void Memory::write(size_t offset, size_t bytes, size_t unit) {
  each(offset, bytes, unit, [&](Element& e) {
    if (!writes_are_past(e) || !reads_are_past(e)) return write_element(e, unit);
    clear_reads(e);
    stamp_write(e);
  });
}

void Memory::atomic(size_t offset, size_t bytes) {
  each(offset, bytes, bytes, [&](Element& e) { atomic_element(e, bytes); });
}

void Memory::race(const Element& e, size_t unit, const char* verb, const char* other) {
  violation(fmt::format("race on element {} ({} bytes each) of {}: this {} and {}", index_of(e, unit), unit, name(), verb, other));
}

void Memory::check_writers(const Element& e, size_t unit, const char* verb) {
  if (!ordered(e.write())) race(e, unit, verb, not_ordered("write", e.write()).c_str());
  const bool atomics_unordered =
      (e.was(Element::atomic_threads) && e.write_phase == now.phase) || (e.was(Element::atomic_blocks) && e.write_phase >= now.launch_start);
  if (atomics_unordered) race(e, unit, verb, "atomic writes");
}

void Memory::read_element(Element& e, size_t unit) {
  if (e.write_phase == 0)
    violation(fmt::format("read of element {} ({} bytes each) of {}, which was never written", index_of(e, unit), unit, name()));
  check_writers(e, unit, "read");
  const uint32_t me = bit(now.thread % lanes);
  int flags = e.reader & ~Element::thread_bits;
  if (e.read_phase != now.phase) {
    const bool others = in_other_block(e.read()) || (e.by(Element::several_blocks) && e.read_phase >= now.launch_start);
    flags = others ? Element::several_blocks : 0;
    e.read_lanes = me;
  } else if (e.read_thread() / lanes != now.thread / lanes) {
    e.reader |= Element::several_warps;
    return;
  } else {
    // Readers that are ordered before this one need no place of their own: whoever is ordered after this one is ordered after them.
    bool all_ordered = !e.by(Element::several_warps) && (now.warp->time != 0 || (e.read_lanes & ~me) == 0);  // without a __syncwarp nobody is
    for (int lane = 0; lane < lanes && all_ordered; ++lane)
      if ((e.read_lanes & bit(lane) & ~me) != 0) all_ordered = lane_ordered(lane, e.read_time);
    e.read_lanes = all_ordered ? me : e.read_lanes | me;
  }
  stamp_read(e, flags);
}

void Memory::check_readers(const Element& e, size_t unit, const char* verb) {
  if (e.read_phase < now.launch_start) return;
  if (in_other_block(e.read())) race(e, unit, verb, not_ordered("read", e.read()).c_str());
  if (e.by(Element::several_blocks)) race(e, unit, verb, "a read by another block");
  if (e.read_phase != now.phase) return;
  if (e.read_thread() / lanes != now.thread / lanes) race(e, unit, verb, not_ordered("read", e.read()).c_str());
  if (e.by(Element::several_warps)) race(e, unit, verb, "a read by another warp");
  for (int lane = 0; lane < lanes; ++lane) {
    if ((e.read_lanes & bit(lane)) == 0 || lane == now.thread % lanes || lane_ordered(lane, e.read_time)) continue;
    race(e, unit, verb, not_ordered("read", {e.read_phase, e.read_time, static_cast<uint16_t>(e.read_thread() / lanes * lanes + lane)}).c_str());
  }
}

void Memory::write_element(Element& e, size_t unit) {
  check_writers(e, unit, "write");
  check_readers(e, unit, "write");
  clear_reads(e);
  stamp_write(e);
}

void Memory::atomic_element(Element& e, size_t unit) {
  if (e.write_phase == 0)
    violation(fmt::format("atomic access of element {} ({} bytes each) of {}, which was never written", index_of(e, unit), unit, name()));
  if (!e.was(Element::atomic_write)) check_writers(e, unit, "atomic access");
  check_readers(e, unit, "atomic access");
  const bool same_launch = e.was(Element::atomic_write) && e.write_phase >= now.launch_start;
  const bool blocks = same_launch && (e.was(Element::atomic_blocks) || in_other_block(e.write()));
  const bool threads = same_launch && e.write_phase == now.phase && (e.was(Element::atomic_threads) || !ordered(e.write()));
  stamp_write(e, Element::atomic_write | (blocks ? Element::atomic_blocks : 0) | (threads ? Element::atomic_threads : 0));
}

void Memory::host_write(size_t offset, size_t bytes) {
  if (bytes == 0) return;
  if (bytes == size_) {
    elements_.clear();
    mask_ = all_bits;
    all_written_ = true;
    return;
  }
  const bool to_the_end = offset + bytes == size_;
  if (elements_.empty() && all_written_) return;
  make_granule(offset, to_the_end ? offset | 8 : bytes);
  Element element;
  element.write_phase = 1;
  std::fill(begin(offset), end(offset + bytes), element);
}

void Memory::host_read(size_t offset, size_t bytes, const char* operation) {
  if (bytes == 0 || (elements_.empty() && all_written_)) return;
  if (elements_.empty()) violation(fmt::format("{}: byte {} of {} was never written", operation, offset, name()));
  // The first and the last element may be more than is read: they were written as a whole or not at all.
  for (const Element* e = begin(offset); e != end(offset + bytes); ++e)
    if (e->write_phase == 0)
      violation(fmt::format("{}: byte {} of {} was never written", operation, std::max(offset, static_cast<size_t>(e - elements_.data()) << shift_),
                            name()));
}

void Memory::copy_shadow(size_t offset, Memory& from, size_t from_offset, size_t bytes) {
  if (bytes == 0) return;
  if (from.elements_.empty() && from.all_written_) return host_write(offset, bytes);
  make_granule(offset, bytes);
  from.make_granule(from_offset, bytes);
  make_granule(0, size_t{1} << from.shift_);
  from.make_granule(0, size_t{1} << shift_);
  std::vector<Element> copies(bytes >> shift_);  // the ranges may overlap
  const Element* source = from.begin(from_offset);
  for (Element& copy : copies) copy.write_phase = source++->write_phase != 0 ? 1 : 0;
  std::copy(copies.begin(), copies.end(), begin(offset));
}

const unsigned char* checked_read(Memory* memory, std::ptrdiff_t offset, std::ptrdiff_t begin, std::ptrdiff_t end, size_t bytes, size_t alignment) {
  if (!fits(memory, offset, begin, end, bytes, alignment)) check_access(memory, offset, begin, end, "read", bytes, bytes, alignment);
  memory->read(static_cast<size_t>(offset), bytes, bytes);
  return memory->data() + offset;
}
unsigned char* checked_write(Memory* memory, std::ptrdiff_t offset, std::ptrdiff_t begin, std::ptrdiff_t end, size_t bytes, size_t alignment) {
  if (!fits(memory, offset, begin, end, bytes, alignment)) check_access(memory, offset, begin, end, "write", bytes, bytes, alignment);
  memory->write(static_cast<size_t>(offset), bytes, bytes);
  return memory->data() + offset;
}
unsigned char* checked_atomic(Memory* memory, std::ptrdiff_t offset, std::ptrdiff_t begin, std::ptrdiff_t end, size_t bytes, size_t alignment) {
  if (!fits(memory, offset, begin, end, bytes, alignment)) check_access(memory, offset, begin, end, "atomic access", bytes, bytes, alignment);
  memory->atomic(static_cast<size_t>(offset), bytes);
  return memory->data() + offset;
}

}  // namespace cuda_emulator
