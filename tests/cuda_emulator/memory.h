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
  Stamp write, read;
  uint32_t read_lanes = 0;        // lanes of read.thread's warp that read in that phase and are not ordered among themselves; read.time is the latest
  bool atomic_write : 1 = false;  // the last write was atomic: others may be so at the same time
  bool atomic_threads : 1 = false;  // so it was by several threads in that phase,
  bool atomic_blocks : 1 = false;   // by several blocks in that launch
  bool several_warps : 1 = false;   // more than one warp read in that phase
  bool several_blocks : 1 = false;  // other blocks of that launch read too
};

/// A range of device memory or a shared array.
class Memory {
 public:
  enum class Kind { global, shared };
  Memory(Kind kind, std::string name, uintptr_t address, size_t size);

  /// A thread's access to [offset, offset + bytes), which lies inside.
  void read(size_t offset, size_t bytes) { access(offset, bytes, &Memory::read_element, "read"); }
  void write(size_t offset, size_t bytes) { access(offset, bytes, &Memory::write_element, "write"); }
  void atomic(size_t offset, size_t bytes) { access(offset, bytes, &Memory::atomic_element, "atomic access"); }

  /// The host's copies and fills.
  void host_write(size_t offset, size_t bytes);
  void host_read(size_t offset, size_t bytes, const char* operation);
  /// Copies the shadow of another range with the contents: what was not written stays so.
  void copy_shadow(size_t offset, Memory& from, size_t from_offset, size_t bytes);

  /// Gives contents and shadow back; the object stays, so that later uses of its address are recognised.
  void release();

  Kind kind() const { return kind_; }
  const std::string& name() const { return name_; }
  uintptr_t address() const { return address_; }
  size_t size() const { return size_; }
  bool alive() const { return alive_; }
  unsigned char* data() { return data_.get(); }

 private:
  using ElementCheck = void (Memory::*)(Element&, size_t index, size_t bytes, const char* verb);
  void access(size_t offset, size_t bytes, ElementCheck check, const char* verb);
  void read_element(Element& element, size_t index, size_t bytes, const char* verb);
  void write_element(Element& element, size_t index, size_t bytes, const char* verb);
  void atomic_element(Element& element, size_t index, size_t bytes, const char* verb);
  void check_readers(const Element& element, size_t index, size_t bytes, const char* verb);
  void refine(size_t offset, size_t bytes);
  void check_writers(const Element& element, size_t index, size_t bytes, const char* verb);
  [[noreturn]] void race(const char* verb, size_t index, size_t bytes, const char* other_verb, const Stamp& other);

  Kind kind_;
  std::string name_;
  uintptr_t address_;
  size_t size_;
  bool alive_ = true;
  std::unique_ptr<unsigned char[]> data_;
  size_t granule_ = 8;  // bytes of an element: the smallest access so far
  std::vector<Element> elements_;
};

/// The block of the running launch to which a phase belongs, as text, and the number of barriers it had passed.
std::string describe_phase(uint32_t phase);

}  // namespace cuda_emulator
