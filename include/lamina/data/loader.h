#pragma once
// Batches of a data set, epoch after epoch:
//   data::Loader batches(data::mnist(dir, data::Split::train), {.batch_size = 128, .shuffle_seed = 1});
//   for (auto [images, labels] : batches) ...      // one epoch; the next loop runs the next epoch

#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>

#include <lamina/data/dataset.h>

namespace lamina::data {

struct LoaderOptions {
  int64_t batch_size = 1;
  bool shuffle = true;  // false: in the order of the data set
  uint64_t shuffle_seed = 0;
  bool drop_last = false;      // true: leaves out a last batch that is not full
  double scale = 1.0 / 255.0;  // of u8 images: pixel p becomes p * scale - mean, rounded once; images of f32 and f64 are taken as they are
  double mean = 0.0;
  bool flatten = true;       // images as [B, width] instead of [B, ...]
  bool prefetch = true;      // a thread prepares the next batches; the batches are the same, bit for bit
  DType dtype = DType::f32;  // of the images: f32 or f64
};

struct Batch {
  Tensor images;  // f32 (see dtype) [B, width] or [B, ...]
  Tensor labels;  // i64 [B]
};

/// Cuts a data set into batches. The order of epoch e is a pure function of (shuffle_seed, e), and position k of it does not depend on the batch
/// size. Images stay u8 until they are batched. Each batch has memory of its own, so it may be kept; what is dropped is reused, and from the
/// second epoch on nothing is asked of the system.
class Loader {
 public:
  class Iterator;

  /// Throws InputError for a data set that check() refuses, a batch size below 1, a dtype other than f32 and f64, a scale or mean that is not
  /// finite, and with drop_last a batch size above the number of examples (without it, that is one smaller batch).
  Loader(Dataset dataset, const LoaderOptions& options);

  const Dataset& dataset() const { return dataset_; }
  const LoaderOptions& options() const { return options_; }
  /// checksum(dataset()), computed when first asked for.
  uint32_t data_checksum() const;
  int64_t num_batches() const { return num_batches_; }

  /// The epoch that the next begin() runs; 0 at first, one more after each begin().
  int64_t epoch() const { return epoch_; }
  void set_epoch(int64_t epoch);
  /// Makes the next begin() start at this batch instead of the first, to resume inside an epoch; num_batches() gives an empty loop.
  /// Throws Error outside of 0..num_batches().
  void seek(int64_t batch);

  Iterator begin();
  std::default_sentinel_t end() const { return {}; }

 private:
  Dataset dataset_;
  LoaderOptions options_;
  mutable std::optional<uint32_t> checksum_;
  int64_t num_batches_ = 0, epoch_ = 0, first_batch_ = 0;
};

/// One pass over an epoch. It shares the data with its Loader but does not need it; destroying it early stops and joins the prefetch thread.
class Loader::Iterator {
 public:
  using value_type = Batch;
  using difference_type = std::ptrdiff_t;

  ~Iterator();
  Iterator(Iterator&&) noexcept;
  Iterator& operator=(Iterator&&) noexcept;

  const Batch& operator*() const { return batch_; }
  const Batch* operator->() const { return &batch_; }
  Iterator& operator++();
  void operator++(int) { ++*this; }
  bool operator==(std::default_sentinel_t) const { return index_ >= count_; }

  /// Position of the batch in its epoch.
  int64_t index() const { return index_; }

 private:
  friend class Loader;
  class Source;
  Iterator(std::unique_ptr<Source> source, int64_t index, int64_t count);
  void fetch();

  std::unique_ptr<Source> source_;
  Batch batch_;
  int64_t index_ = 0, count_ = 0;
};

}  // namespace lamina::data
