#include <lamina/core/memory.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1  // clang's way to say it
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#endif

#include "core/format.h"
#include "core/memory_pool.h"
#include "kernels/kernels.h"

namespace lamina {

namespace {

constexpr int64_t alignment = 64;
constexpr int64_t huge_page = int64_t{2} << 20;
constexpr int64_t largest = int64_t{1} << 47;  // more than any machine has; keeps the class arithmetic from overflowing

constexpr size_t class_count = 192;

// Size classes: four steps per power of two (64, 80 -> 128, ...), so that at most a quarter of a buffer is waste.
struct SizeClass {
  int64_t bytes;
  size_t index;
};

SizeClass size_class(int64_t bytes) {
  const int64_t units = std::max<int64_t>((bytes + alignment - 1) / alignment, 1);
  if (units <= 4) return {units * alignment, static_cast<size_t>(units - 1)};
  const int log2 = std::bit_width(static_cast<uint64_t>(units - 1)) - 1;  // units in (2^log2, 2^(log2+1)]
  const int64_t step = int64_t{1} << (log2 - 2);
  const int64_t quarter = (units - (int64_t{1} << log2) + step - 1) / step;  // 1..4
  return {((int64_t{1} << log2) + quarter * step) * alignment, static_cast<size_t>(4 + (log2 - 2) * 4 + quarter - 1)};
}

int64_t bytes_of_class(size_t index) {
  if (index < 4) return static_cast<int64_t>(index + 1) * alignment;
  const auto steps = static_cast<int64_t>((index - 4) % 4 + 5);  // quarters of the power of two below
  return (steps << ((index - 4) / 4)) * alignment;
}

// A load waits for a store before it whose address ends in the same twelve bits, whether or not it is the same place: two arrays that are walked
// together then take up to twice the time, if one begins a line or a few behind the other in their pages. So buffers of this size and more begin at
// one of four places in a page, in turn: there they are equally far along, which costs nothing, or at least sixteen lines apart.
constexpr int64_t placed = int64_t{16} << 10, page = 4096, place = 1024;

void* system_allocate(int64_t bytes, int64_t& turn) {
  const bool large = bytes >= 2 * huge_page;
  void* pointer = nullptr;
  if (bytes < placed) return posix_memalign(&pointer, alignment, static_cast<size_t>(bytes)) == 0 ? pointer : nullptr;
  if (posix_memalign(&pointer, static_cast<size_t>(large ? huge_page : page), static_cast<size_t>(bytes + page)) != 0) return nullptr;
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  // Weights and moments are walked from end to end each step: huge pages save the address translation.
  if (large) madvise(pointer, static_cast<size_t>(bytes), MADV_HUGEPAGE);
#endif
  return static_cast<char*>(pointer) + turn++ % (page / place) * place;
}

void system_release(void* pointer, int64_t bytes) {
  std::free(bytes < placed ? pointer : static_cast<char*>(pointer) - reinterpret_cast<uintptr_t>(pointer) % page);
}

std::string human(int64_t bytes) {
  if (bytes < 1 << 20) return fmt::format("{} bytes", bytes);
  if (bytes < 1 << 30) return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
  return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / (1 << 30));
}

/// For sanitizers: the first `bytes` of a buffer may be used.
void mark_live([[maybe_unused]] void* pointer, [[maybe_unused]] int64_t bytes, [[maybe_unused]] int64_t whole) {
  ASAN_UNPOISON_MEMORY_REGION(pointer, static_cast<size_t>(whole));
#if defined(__SANITIZE_ADDRESS__)
  std::memset(pointer, 0xFF, static_cast<size_t>(whole));  // NaN as f32 and f64: reading what was never written shows
#endif
  ASAN_POISON_MEMORY_REGION(static_cast<char*>(pointer) + bytes, static_cast<size_t>(whole - bytes));
}

/// Whether buffers are kept for reuse. With LAMINA_CUDA_POOL=0 those of GPUs are not, so that what watches over a GPU's memory sees each begin and
/// end.
bool keeps(Device device) {
  const char* const wish = std::getenv("LAMINA_CUDA_POOL");
  return device.is_cpu() || !wish || std::string_view(wish) != "0";
}

/// Of buffers that are got from now on: how many of each class there are, and have been at once.
struct Count {
  void add(void* pointer, size_t index) {
    live[pointer] = index;
    most[index] = std::max(most[index], ++now[index]);
  }
  void remove(void* pointer) {
    const auto found = live.find(pointer);
    if (found == live.end()) return;
    --now[found->second];
    live.erase(found);
  }
  std::unordered_map<void*, size_t> live;
  std::array<int64_t, class_count> now{}, most{};
};

/// The buffers of one device. Those of a GPU are used by one stream, so that a buffer can be handed on before the work on it is done.
class Pool {
 public:
  explicit Pool(Device device) : device_(device) {}

  void* allocate(int64_t bytes) {
    if (bytes > largest) fail_out_of_memory(bytes);
    const SizeClass size = size_class(bytes);
    const std::lock_guard lock(mutex_);
    if (limit_ > 0 && stats_.current_bytes + size.bytes > limit_) fail_out_of_memory(size.bytes);
    void* pointer = open_arena_ > 0 ? from_arena(size) : take(free_, size.index);
    if (!pointer) pointer = from_system(keeps_ ? size.bytes : bytes);
    if (count_) count_->add(pointer, size.index);
    stats_.current_bytes += size.bytes;
    stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.current_bytes);
    if (device_.is_cpu()) mark_live(pointer, bytes, size.bytes);
    return pointer;
  }

  void release(void* pointer, int64_t bytes) {
    const SizeClass size = size_class(bytes);
    const std::lock_guard lock(mutex_);
    if (count_) count_->remove(pointer);
    stats_.current_bytes -= size.bytes;
    const auto owner = owners_.find(pointer);
    if (owner == owners_.end() && !keeps_) return open_arena_ > 0 ? late_.push_back(pointer) : to_system(pointer, size.bytes);
    (owner == owners_.end() ? free_ : arenas_.at(owner->second))[size.index].push_back(pointer);
    stats_.cached_bytes += size.bytes;
    if (device_.is_cpu()) ASAN_POISON_MEMORY_REGION(pointer, static_cast<size_t>(size.bytes));
  }

  void start_rehearsal() {
    const std::lock_guard lock(mutex_);
    count_.emplace();
  }
  int make_arena() {
    const std::lock_guard lock(mutex_);
    const Count count = std::exchange(count_, std::nullopt).value();
    Lists& lists = arenas_[++last_arena_];
    for (size_t index = 0; index < lists.size(); ++index)
      for (int64_t i = 0; i < count.most[index]; ++i) {
        void* const kept = take(free_, index);
        lists[index].push_back(kept ? kept : from_system(bytes_of_class(index)));
        stats_.cached_bytes += bytes_of_class(index);
        owners_[lists[index].back()] = last_arena_;
      }
    return last_arena_;
  }
  void open_arena(int arena) {
    const std::lock_guard lock(mutex_);
    if (open_arena_ > 0) fail("memory", "an arena is open already");
    open_arena_ = arena;
  }
  void close_arena() {
    const std::lock_guard lock(mutex_);
    open_arena_ = 0;
    for (void* pointer : late_) to_system(pointer, 0);
    late_.clear();
  }
  void drop_arena(int arena) {
    const std::lock_guard lock(mutex_);
    Lists& lists = arenas_.at(arena);
    for (size_t i = 0; i < lists.size(); ++i) free_[i].insert(free_[i].end(), lists[i].begin(), lists[i].end());
    arenas_.erase(arena);
    std::erase_if(owners_, [arena](const auto& owner) { return owner.second == arena; });
    if (!keeps_) release_cached();
  }

  void release_all_cached() {
    const std::lock_guard lock(mutex_);
    release_cached();
  }

  MemoryStats stats() {
    const std::lock_guard lock(mutex_);
    return stats_;
  }
  void reset_peak() {
    const std::lock_guard lock(mutex_);
    stats_.peak_bytes = stats_.current_bytes;
  }
  void set_limit(int64_t bytes) {
    const std::lock_guard lock(mutex_);
    limit_ = bytes;
  }

 private:
  using Lists = std::array<std::vector<void*>, class_count>;

  /// Null when there is none.
  void* take(Lists& lists, size_t index) {
    auto& list = lists[index];
    if (list.empty()) return nullptr;
    void* const pointer = list.back();
    list.pop_back();
    stats_.cached_bytes -= bytes_of_class(index);
    return pointer;
  }
  void* from_arena(const SizeClass& size) {
    if (void* const pointer = take(arenas_.at(open_arena_), size.index)) return pointer;
    void* const pointer = take(free_, size.index);
    if (!pointer) fail("memory", "a captured step needs {} more at once than the step before it did", human(size.bytes));
    owners_[pointer] = open_arena_;
    return pointer;
  }

  void* from_system(int64_t bytes) {
    const auto get = [&] { return kernels::on_cuda(device_) ? kernels::CudaBackend::allocate(bytes) : system_allocate(bytes, turn_); };
    void* pointer = get();
    if (!pointer) {
      release_cached();
      pointer = get();
    }
    if (!pointer) fail_out_of_memory(bytes);
    ++stats_.system_allocations;
    return pointer;
  }
  void to_system(void* pointer, int64_t bytes) const {
    kernels::on_cuda(device_) ? kernels::CudaBackend::release(pointer) : system_release(pointer, bytes);
  }

  void release_cached() {
    for (size_t index = 0; index < free_.size(); ++index)
      while (void* const pointer = take(free_, index)) to_system(pointer, bytes_of_class(index));
  }

  [[noreturn]] void fail_out_of_memory(int64_t wanted) const {
    std::string text = fmt::format("out of memory on {}: wanted {}, {} held by live tensors, {} cached", device_, human(wanted),
                                   human(stats_.current_bytes), human(stats_.cached_bytes));
    if (limit_ > 0) text += ", limit " + human(limit_);
    if (kernels::on_cuda(device_)) {
      const auto [free, total] = kernels::CudaBackend::memory();
      text += fmt::format(", {} of {} free on the GPU", human(free), human(total));
    }
    fail("memory", text);
  }

  const Device device_;
  const bool keeps_ = keeps(device_);
  std::mutex mutex_;
  Lists free_;
  std::map<int, Lists> arenas_;
  std::unordered_map<void*, int> owners_;  // of buffers of arenas
  int open_arena_ = 0, last_arena_ = 0;    // 0: none
  std::optional<Count> count_;             // of a rehearsal
  std::vector<void*> late_;                // for the system, which a capture must not give anything
  MemoryStats stats_;
  int64_t limit_ = 0, turn_ = 0;
};

// Never destroyed: tensors in static variables may outlive any static pool.
Pool& pool(Device device) {
  static Pool* const cpu = new Pool(Device::cpu());
  if (device.is_cpu()) return *cpu;
  constexpr int most = 64;
  static std::array<Pool*, most> cuda{};
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  Pool*& found = cuda.at(static_cast<size_t>(device.index));
  if (!found) found = new Pool(Device::cuda(device.index));
  return *found;
}

}  // namespace

MemoryStats memory_stats(Device device) { return pool(device).stats(); }
void reset_peak_memory(Device device) { pool(device).reset_peak(); }
void release_cached_memory(Device device) { pool(device).release_all_cached(); }
void set_memory_limit(int64_t bytes, Device device) { pool(device).set_limit(bytes); }

namespace detail {

void* allocate(int64_t bytes, Device device) { return bytes == 0 ? nullptr : pool(device).allocate(bytes); }

void release(void* pointer, int64_t bytes, Device device) {
  if (pointer) pool(device).release(pointer, bytes);
}

void start_rehearsal(Device device) { pool(device).start_rehearsal(); }
int make_arena(Device device) { return pool(device).make_arena(); }
void open_arena(int arena, Device device) { pool(device).open_arena(arena); }
void close_arena(Device device) { pool(device).close_arena(); }
void drop_arena(int arena, Device device) { pool(device).drop_arena(arena); }

}  // namespace detail
}  // namespace lamina
