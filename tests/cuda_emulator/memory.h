#pragma once
// Memory with a shadow: for each element whether it was written, by whom last, who has read it since, and when, so that reads of unwritten memory and
// data races are found exactly, whichever order the threads happened to run in.
//
// Time is counted in phases: every block starts a new one, and so does every barrier of a block. Two accesses of one block in different phases are
// ordered. In one phase, threads of a warp are ordered by __syncwarp only, which each warp follows with vector clocks; threads of different warps are
// not ordered. Blocks of one launch are never ordered (they may not speak to each other through plain memory); launches are, since there is one
// stream.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace cuda_emulator {

constexpr int lanes = 32;

/// The vector clocks of a warp within a phase: known[a][b] is one more than the last moment of lane b that lane a is ordered after.
struct WarpClocks {
  uint32_t time = 0;  // __syncwarps so far
  std::array<std::array<uint32_t, lanes>, lanes> known{};
};

/// Who runs now, and since when. thread < 0: host code.
struct Now {
  int thread = -1;
  uint32_t phase = 1;  // 0 is "never", 1 the host
  uint32_t launch_start = 2, block_start = 2;
  const WarpClocks* warp = nullptr;
};
inline Now now;

/// The access of an element by a thread.
struct Stamp {
  uint32_t phase = 0, time = 0;
  uint16_t thread = 0;
};

struct Element {
  uint32_t write_phase = 0, write_time = 0, read_phase = 0, read_time = 0;
  uint32_t read_lanes = 0;  // lanes of read_thread's warp that read in that phase and are not ordered among themselves; read_time is the latest
  // A thread and the bits below. No bit fields: writing one and reading its neighbour costs ten times as much.
  uint16_t writer = 0, reader = 0;

  static constexpr uint16_t thread_bits = 0x3FF;
  static constexpr uint16_t atomic_write = 0x400;    // writer: the last write was atomic: others may be so at the same time
  static constexpr uint16_t atomic_threads = 0x800;  // so it was by several threads in that phase,
  static constexpr uint16_t atomic_blocks = 0x1000;  // by several blocks in that launch
  static constexpr uint16_t several_warps = 0x400;   // reader: more than one warp read in that phase
  static constexpr uint16_t several_blocks = 0x800;  // other blocks of that launch read too

  int write_thread() const { return writer & thread_bits; }
  int read_thread() const { return reader & thread_bits; }
  bool was(uint16_t bit_of_writer) const { return (writer & bit_of_writer) != 0; }
  bool by(uint16_t bit_of_reader) const { return (reader & bit_of_reader) != 0; }
  Stamp write() const { return {write_phase, write_time, static_cast<uint16_t>(write_thread())}; }
  Stamp read() const { return {read_phase, read_time, static_cast<uint16_t>(read_thread())}; }
};
static_assert(sizeof(Element) == 24);

/// A range of device memory or a shared array.
class Memory {
 public:
  enum class Kind { global, shared };
  /// `number` is for its name.
  Memory(Kind kind, const char* what, int64_t number, uintptr_t address, size_t size, int device = 0);

  /// A thread's access to [offset, offset + bytes), which lies inside: one or more things of `unit` bytes.
  void read(size_t offset, size_t bytes, size_t unit);
  void write(size_t offset, size_t bytes, size_t unit);
  void atomic(size_t offset, size_t bytes);

  /// The host's copies and fills.
  void host_write(size_t offset, size_t bytes);
  void host_read(size_t offset, size_t bytes, const char* operation);
  /// Copies the shadow of another range with the contents: what was not written stays so.
  void copy_shadow(size_t offset, Memory& from, size_t from_offset, size_t bytes);

  /// Gives contents and shadow back; the object stays, so that later uses of its address are recognised.
  void release();
  /// Of shared memory between launches: another size.
  void resize(size_t size);

  Kind kind() const { return kind_; }
  std::string name() const;
  uintptr_t address() const { return address_; }
  size_t size() const { return size_; }
  int device() const { return device_; }
  bool alive() const { return data_ != nullptr; }
  unsigned char* data() { return data_.get(); }

  /// The phase in which the block began that a shared array was last used by.
  uint32_t used_in = 0;

 private:
  template <class F>
  void each(size_t offset, size_t bytes, size_t unit, F&& f);
  void read_element(Element& element, size_t unit);
  void write_element(Element& element, size_t unit);
  void atomic_element(Element& element, size_t unit);
  size_t index_of(const Element& element, size_t unit) const { return (static_cast<size_t>(&element - elements_.data()) << shift_) / unit; }
  void check_readers(const Element& element, size_t unit, const char* verb);
  void check_writers(const Element& element, size_t unit, const char* verb);
  void make_granule(size_t offset, size_t bytes);
  Element* begin(size_t offset) { return elements_.data() + (offset >> shift_); }
  Element* end(size_t offset) { return elements_.data() + ((offset + (size_t{1} << shift_) - 1) >> shift_); }
  [[noreturn]] void race(const Element& element, size_t unit, const char* verb, const char* other);

  Kind kind_;
  const char* what_;
  int64_t number_;
  uintptr_t address_;
  size_t size_;
  int device_;
  std::unique_ptr<unsigned char[]> data_;
  // An element is 2^shift_ bytes long, the smallest access so far; the last may be cut off. Empty: all are written or all are not.
  std::vector<Element> elements_;
  unsigned shift_ = 3;
  size_t mask_ = all_bits;  // the bits that offset and size of a whole number of elements lack; all of them while there are no elements
  bool all_written_ = false;
  static constexpr size_t all_bits = ~size_t{0};
};

/// The block of the running launch to which a phase belongs, as text, and the number of barriers it had passed.
std::string describe_phase(uint32_t phase);

}  // namespace cuda_emulator
