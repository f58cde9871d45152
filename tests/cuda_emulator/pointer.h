#pragma once
// The checked stand-in for a device pointer. Everything goes through three accesses: load, store, atomic.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cuda_emulator/memory.h"

namespace cuda_emulator {

/// The device memory, dead or alive, that `address` points into (or just past); throws when there is none.
Memory* find_memory(const void* address);

/// Whether an access lies inside the pointer's bounds, is aligned (memory begins at multiples of 256), and may happen at all.
inline bool fits(const Memory* memory, std::ptrdiff_t offset, std::ptrdiff_t begin, std::ptrdiff_t end, size_t bytes, size_t alignment) {
  return memory && offset >= begin && offset + static_cast<std::ptrdiff_t>(bytes) <= end && (static_cast<size_t>(offset) & (alignment - 1)) == 0 &&
         memory->alive() && now.thread >= 0;
}
/// Throws what is wrong with an access that does not fit.
[[noreturn]] void check_access(const Memory* memory, std::ptrdiff_t offset, std::ptrdiff_t begin, std::ptrdiff_t end, const char* verb,
                               size_t element, size_t bytes, size_t alignment);
/// One access by the running thread, checked in every respect: where its bytes are.
const unsigned char* checked_read(Memory* memory, std::ptrdiff_t offset, std::ptrdiff_t begin, std::ptrdiff_t end, size_t bytes, size_t alignment);
unsigned char* checked_write(Memory* memory, std::ptrdiff_t offset, std::ptrdiff_t begin, std::ptrdiff_t end, size_t bytes, size_t alignment);
unsigned char* checked_atomic(Memory* memory, std::ptrdiff_t offset, std::ptrdiff_t begin, std::ptrdiff_t end, size_t bytes, size_t alignment);

template <class T>
class Pointer;

/// What dereferencing a pointer to writable memory gives: reads and writes are told apart.
template <class T>
class Reference {
 public:
  explicit Reference(Pointer<T> at) : at_(at) {}
  Reference(const Reference&) = default;
  operator T() const { return at_.load(); }
  const Reference& operator=(const T& value) const { return at_.store(value), *this; }
  const Reference& operator=(const Reference& other) const { return *this = static_cast<T>(other); }
  const Reference& operator+=(const T& value) const { return *this = static_cast<T>(at_.load() + value); }
  const Reference& operator-=(const T& value) const { return *this = static_cast<T>(at_.load() - value); }
  const Reference& operator*=(const T& value) const { return *this = static_cast<T>(at_.load() * value); }

 private:
  Pointer<T> at_;
};

/// Points into memory, within bounds: those of the allocation, or of the part that shared<T>(n, from) named.
template <class T>
class Pointer {
 public:
  using Value = std::remove_const_t<T>;
  static_assert(std::is_trivially_copyable_v<Value>);

  Pointer() = default;
  Pointer(std::nullptr_t) {}
  /// From what cudaMalloc gave, as a launch passes it. Host pointers are refused.
  Pointer(T* raw) {
    if (!raw) return;
    memory_ = find_memory(raw);
    offset_ = reinterpret_cast<std::intptr_t>(raw) - static_cast<std::intptr_t>(memory_->address());
    end_ = static_cast<std::ptrdiff_t>(memory_->size());
  }
  Pointer(Memory* memory, std::ptrdiff_t begin, std::ptrdiff_t end) : memory_(memory), offset_(begin), begin_(begin), end_(end) {}
  template <class U, class = std::enable_if_t<std::is_same_v<const U, T>>>
  Pointer(const Pointer<U>& other) : memory_(other.memory_), offset_(other.offset_), begin_(other.begin_), end_(other.end_) {}

  Value load() const {
    Value value;
    std::memcpy(&value, checked_read(memory_, offset_, begin_, end_, sizeof(T), alignof(T)), sizeof(T));
    return value;
  }
  void store(const Value& value) const {
    static_assert(!std::is_const_v<T>);
    std::memcpy(checked_write(memory_, offset_, begin_, end_, sizeof(T), alignof(T)), &value, sizeof(T));
  }
  /// n elements at once, aligned as a whole; `verb` is for the text.
  void load_all(Value* to, size_t n, const char* verb) const {
    check(verb, n * sizeof(T), n * sizeof(T));
    memory_->read(static_cast<size_t>(offset_), n * sizeof(T), sizeof(T));
    std::memcpy(to, memory_->data() + offset_, n * sizeof(T));
  }
  void store_all(const Value* from, size_t n, const char* verb) const {
    static_assert(!std::is_const_v<T>);
    check(verb, n * sizeof(T), n * sizeof(T));
    memory_->write(static_cast<size_t>(offset_), n * sizeof(T), sizeof(T));
    std::memcpy(memory_->data() + offset_, from, n * sizeof(T));
  }
  /// Replaces the value by f(value) at once, and returns the old one.
  template <class F>
  Value atomic(F&& f) const {
    unsigned char* const at = checked_atomic(memory_, offset_, begin_, end_, sizeof(T), alignof(T));
    Value old;
    std::memcpy(&old, at, sizeof(T));
    const Value value = f(old);
    std::memcpy(at, &value, sizeof(T));
    return old;
  }
  /// That an access of `bytes` at once, of what lies from here on, is inside and aligned.
  void check(const char* verb, size_t bytes, size_t alignment) const;

  auto operator*() const {
    if constexpr (std::is_const_v<T>)
      return load();
    else
      return Reference<T>(*this);
  }
  auto operator[](std::ptrdiff_t i) const { return *(*this + i); }

  Pointer operator+(std::ptrdiff_t n) const { return Pointer(*this) += n; }
  Pointer operator-(std::ptrdiff_t n) const { return Pointer(*this) += -n; }
  Pointer& operator+=(std::ptrdiff_t n) {
    offset_ += n * static_cast<std::ptrdiff_t>(sizeof(T));
    return *this;
  }
  Pointer& operator++() { return *this += 1; }
  std::ptrdiff_t operator-(const Pointer& other) const { return (offset_ - other.offset_) / static_cast<std::ptrdiff_t>(sizeof(T)); }
  bool operator==(const Pointer&) const = default;
  bool operator==(std::nullptr_t) const { return memory_ == nullptr; }
  explicit operator bool() const { return memory_ != nullptr; }

 private:
  template <class U>
  friend class Pointer;
  Memory* memory_ = nullptr;
  std::ptrdiff_t offset_ = 0, begin_ = 0, end_ = 0;
};

template <class T>
void Pointer<T>::check(const char* verb, size_t bytes, size_t alignment) const {
  if (!fits(memory_, offset_, begin_, end_, bytes, alignment)) check_access(memory_, offset_, begin_, end_, verb, sizeof(T), bytes, alignment);
}

/// The dynamic shared memory of the running block, which must hold `bytes` from byte `from` on.
Memory* shared_memory(size_t from, size_t bytes, size_t alignment);
/// Makes the memory of a __shared__ variable when it is first used, and counts it against the limit of the running block.
void static_memory(Memory*& memory, size_t bytes);

/// n elements of the block's dynamic shared memory, from byte `from` on.
template <class T>
Pointer<T> shared(size_t n, size_t from) {
  const std::ptrdiff_t begin = static_cast<std::ptrdiff_t>(from), end = begin + static_cast<std::ptrdiff_t>(n * sizeof(T));
  return Pointer<T>(shared_memory(from, n * sizeof(T), alignof(T)), begin, end);
}

/// A __shared__ array of a fixed size. The object itself outlives kernels (__shared__ means static here); its contents are new for every block.
template <class T, int n>
class SharedArray {
 public:
  Reference<T> operator[](std::ptrdiff_t i) { return (pointer() + i).operator*(); }
  operator Pointer<T>() { return pointer(); }
  operator Pointer<const T>() { return pointer(); }

 private:
  Pointer<T> pointer() {
    if (!memory_ || memory_->used_in != now.block_start) static_memory(memory_, n * sizeof(T));
    return Pointer<T>(memory_, 0, n * static_cast<std::ptrdiff_t>(sizeof(T)));
  }
  Memory* memory_ = nullptr;
};

}  // namespace cuda_emulator
