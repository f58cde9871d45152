#include <lamina/data/loader.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include <lamina/core/random.h>
#include "core/format.h"

namespace lamina::data {
namespace {

// The prefetch thread is woken once per chunk of batches, not once per batch: beside a step of 700 us a wake-up per step would show.
constexpr int64_t chunk_bytes = 1 << 20;
constexpr int64_t max_chunk_batches = 256;

// Fills rows of `out` with examples of `images`.
using RowWriter = void (*)(const void* images, int64_t width, const int64_t* order, int64_t count, void* out, const void* table);

// u8 pixels through a table of all 256 results: exactly rounded whatever the scale is, and about as fast as arithmetic.
template <class T>
void write_pixels(const void* images, int64_t width, const int64_t* order, int64_t count, void* out, const void* table) {
  const T* __restrict values = static_cast<const T*>(table);
  T* __restrict y = static_cast<T*>(out);
  for (int64_t r = 0; r < count; ++r, y += width) {
    const uint8_t* x = static_cast<const uint8_t*>(images) + order[r] * width;
    for (int64_t i = 0; i < width; ++i) y[i] = values[x[i]];
  }
}

template <class From, class T>
void write_floats(const void* images, int64_t width, const int64_t* order, int64_t count, void* out, const void*) {
  auto* y = static_cast<T*>(out);
  for (int64_t r = 0; r < count; ++r, y += width) {
    const From* x = static_cast<const From*>(images) + order[r] * width;
    for (int64_t i = 0; i < width; ++i) y[i] = static_cast<T>(x[i]);
  }
}

template <class T>
RowWriter row_writer(DType from) {
  if (from == DType::u8) return write_pixels<T>;
  return from == DType::f32 ? write_floats<float, T> : write_floats<double, T>;
}

// Makes the batches of one epoch. allocate() asks for memory, fill() only writes: the consumer does the first and the prefetch thread the second,
// so that allocations happen in the same order in every run, with or without the thread, and the steady state is one.
class BatchMaker {
 public:
  BatchMaker(const Dataset& dataset, const LoaderOptions& options, int64_t epoch) : dataset_(dataset), options_(options) {
    const int64_t count = dataset.size();
    if (options.shuffle) {
      Rng rng = Rng(options.shuffle_seed).stream(fmt::format("data/shuffle/{}", epoch));
      order_ = randperm(count, rng);
    } else {
      order_ = Tensor::arange(count);
    }
    width_ = dataset.images.numel() / count;
    writer_ = options.dtype == DType::f32 ? row_writer<float>(dataset.images.dtype()) : row_writer<double>(dataset.images.dtype());
    for (size_t p = 0; p < 256; ++p) {
      f64_table_[p] = static_cast<double>(p) * options.scale - options.mean;
      f32_table_[p] = static_cast<float>(f64_table_[p]);
    }
  }

  int64_t batches_per_chunk() const {
    const int64_t batch_bytes = std::max<int64_t>(rows(0) * width_ * static_cast<int64_t>(size_of(options_.dtype)), 1);
    return std::clamp<int64_t>(chunk_bytes / batch_bytes, 1, max_chunk_batches);
  }

  Batch allocate(int64_t index) const {
    const int64_t count = rows(index);
    const Shape shape = options_.flatten ? Shape{count, width_} : dataset_.images.shape().with(0, count);
    return {Tensor::empty(shape, options_.dtype), Tensor::empty({count}, DType::i64)};
  }

  void fill(Batch& batch, int64_t index) const {
    const int64_t count = rows(index);
    const int64_t* order = order_.data<int64_t>() + index * options_.batch_size;
    const void* table = options_.dtype == DType::f32 ? static_cast<const void*>(f32_table_.data()) : f64_table_.data();
    writer_(dataset_.images.raw_data(), width_, order, count, batch.images.mutable_raw_data(), table);
    const auto* labels = dataset_.labels.data<int64_t>();
    auto* out = batch.labels.mutable_data<int64_t>();
    for (int64_t r = 0; r < count; ++r) out[r] = labels[order[r]];
  }

 private:
  int64_t rows(int64_t index) const { return std::min(options_.batch_size, dataset_.size() - index * options_.batch_size); }

  Dataset dataset_;
  LoaderOptions options_;
  Tensor order_;  // i64 [N]
  int64_t width_ = 0;
  RowWriter writer_ = nullptr;
  std::array<float, 256> f32_table_;
  std::array<double, 256> f64_table_;
};

// A thread that fills one chunk of allocated batches while the consumer works through another. It only computes and copies, so it cannot fail.
class Prefetcher {
 public:
  explicit Prefetcher(const BatchMaker& maker) : maker_(maker), thread_([this] { run(); }) {}
  ~Prefetcher() {
    {
      const std::lock_guard lock(mutex_);
      state_ = State::stopped;
    }
    changed_.notify_all();
    thread_.join();
  }

  /// Hands over batches to be filled; the last chunk must have been taken.
  void request(std::deque<Batch> chunk, int64_t first) {
    {
      const std::lock_guard lock(mutex_);
      chunk_ = std::move(chunk);
      first_ = first;
      state_ = State::requested;
    }
    changed_.notify_all();
  }

  /// Waits for the requested batches.
  std::deque<Batch> take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return state_ == State::filled; });
    state_ = State::idle;
    return std::exchange(chunk_, {});
  }

 private:
  enum class State { idle, requested, filled, stopped };

  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return state_ == State::requested || state_ == State::stopped; });
      if (state_ == State::stopped) return;
      lock.unlock();  // the consumer does not touch the chunk while it is requested
      for (size_t i = 0; i < chunk_.size(); ++i) maker_.fill(chunk_[i], first_ + static_cast<int64_t>(i));
      lock.lock();
      if (state_ == State::stopped) return;
      state_ = State::filled;
      changed_.notify_all();
    }
  }

  const BatchMaker& maker_;
  std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::idle;
  std::deque<Batch> chunk_;
  int64_t first_ = 0;
  std::thread thread_;  // last, so that it starts when the rest is there
};

}  // namespace

// Delivers the batches first..count-1 of an epoch in order.
class Loader::Iterator::Source {
 public:
  Source(const Dataset& dataset, const LoaderOptions& options, int64_t epoch, int64_t first, int64_t count)
      : maker_(dataset, options, epoch), next_(first), requested_(first), count_(count) {
    if (!options.prefetch || first >= count) return;
    try {
      prefetcher_ = std::make_unique<Prefetcher>(maker_);
    } catch (const std::system_error& e) {
      fail("loader", "cannot start the prefetch thread: {} (set prefetch to false to do without)", e.what());
    }
    request();
  }

  Batch next() {
    if (!prefetcher_) {
      Batch batch = maker_.allocate(next_);
      maker_.fill(batch, next_++);
      return batch;
    }
    if (ready_.empty()) {
      ready_ = prefetcher_->take();
      request();
    }
    Batch batch = std::move(ready_.front());
    ready_.pop_front();
    ++next_;
    return batch;
  }

 private:
  void request() {
    const int64_t end = std::min(requested_ + maker_.batches_per_chunk(), count_);
    if (requested_ == end) return;
    std::deque<Batch> chunk;
    for (int64_t i = requested_; i < end; ++i) chunk.push_back(maker_.allocate(i));
    prefetcher_->request(std::move(chunk), std::exchange(requested_, end));
  }

  BatchMaker maker_;
  int64_t next_, requested_, count_;
  std::deque<Batch> ready_;
  std::unique_ptr<Prefetcher> prefetcher_;  // after maker_, which its thread reads
};

Loader::Iterator::Iterator(std::unique_ptr<Source> source, int64_t index, int64_t count) : source_(std::move(source)), index_(index), count_(count) {
  fetch();
}
Loader::Iterator::~Iterator() = default;
Loader::Iterator::Iterator(Iterator&&) noexcept = default;
Loader::Iterator& Loader::Iterator::operator=(Iterator&&) noexcept = default;

Loader::Iterator& Loader::Iterator::operator++() {
  batch_ = {};  // first, so that its memory can serve the next one
  ++index_;
  fetch();
  return *this;
}

void Loader::Iterator::fetch() {
  if (index_ < count_)
    batch_ = source_->next();
  else
    source_.reset();
}

Loader::Loader(Dataset dataset, const LoaderOptions& options) : dataset_(std::move(dataset)), options_(options) {
  check(dataset_);
  const int64_t count = dataset_.size(), size = options.batch_size;
  if (size < 1) fail_input("loader", "batch_size: expected at least 1, got {}", size);
  if (options.drop_last && size > count)
    fail_input("loader", "batch_size: expected at most {}, the number of examples (drop_last is set), got {}", count, size);
  if (!is_float(options.dtype)) fail_input("loader", "dtype: expected f32 or f64, got {}", options.dtype);
  if (!std::isfinite(options.scale) || !std::isfinite(options.mean))
    fail_input("loader", "scale and mean: expected finite numbers, got {} and {}", options.scale, options.mean);
  num_batches_ = options.drop_last ? count / size : count / size + (count % size != 0 ? 1 : 0);
}

uint32_t Loader::data_checksum() const {
  if (!checksum_) checksum_ = checksum(dataset_);
  return *checksum_;
}

void Loader::set_epoch(int64_t epoch) {
  if (epoch < 0) fail("loader", "epoch: expected at least 0, got {}", epoch);
  epoch_ = epoch;
}

void Loader::seek(int64_t batch) {
  if (batch < 0 || batch > num_batches_) fail("loader", "batch: expected 0 to {}, got {}", num_batches_, batch);
  first_batch_ = batch;
}

Loader::Iterator Loader::begin() {
  const int64_t epoch = epoch_, first = std::exchange(first_batch_, 0);
  auto source = std::make_unique<Iterator::Source>(dataset_, options_, epoch, first, num_batches_);
  ++epoch_;
  return Iterator(std::move(source), first, num_batches_);
}

}  // namespace lamina::data
