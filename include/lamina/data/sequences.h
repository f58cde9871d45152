#pragma once
// Sequences of unequal length: a set of them, batches padded with zeros, and the classical problems of long memory.
//   data::SequenceLoader batches(set, {.batch_size = 32, .shuffle_seed = 1});
//   for (int64_t i = 0; i < batches.num_batches(); ++i) {
//     data::SequenceBatch batch = batches.batch(epoch, i);
//     auto [y, state] = lstm(batch.x, {}, batch.lengths);
//   }

#include <cstdint>
#include <span>
#include <vector>

#include <lamina/core/random.h>
#include <lamina/core/tensor.h>

namespace lamina::data {

/// N sequences of vectors, and what is to be said of each.
struct Sequences {
  Tensor steps;                  // f32 [sum of lengths, C], one sequence after the other
  std::vector<int64_t> lengths;  // N, each >= 0
  Tensor targets;                // i64 [N]: a class; i64 [N, R]: classes of the last R steps; f32 [N, K]: numbers

  int64_t size() const { return static_cast<int64_t>(lengths.size()); }
  int64_t width() const { return steps.size(1); }
  /// Throws InputError unless 0 <= each index < size(), and for lengths and targets that check() refuses.
  Sequences select(std::span<const int64_t> indices) const;
};

/// Throws InputError unless shapes and dtypes are as above, lengths are not negative and add up, and N >= 1.
void check(const Sequences& sequences);
/// CRC-32 over steps, lengths and targets.
uint32_t checksum(const Sequences& sequences);

struct SequenceBatch {
  Tensor x;                      // f32 [T, N, C], T the longest; 0 past a sequence's end
  std::vector<int64_t> lengths;  // N; empty when all are T
  Tensor targets;                // as in Sequences
};

/// All of a set, or those named, as one batch. Throws as select().
SequenceBatch pad(const Sequences& sequences);
SequenceBatch pad(const Sequences& sequences, std::span<const int64_t> indices);

struct SequenceLoaderOptions {
  int64_t batch_size = 1;
  bool shuffle = true;  // false: in the order of the set
  uint64_t shuffle_seed = 0;
  int64_t bucket = 20;       // batches of neighbours: so many batches' worth of shuffled sequences are sorted by length; 1: none. Needs shuffle
  bool drop_single = false;  // leaves out a last batch of a single sequence when there are others: batch norm has no variance of one value
};

/// Cuts a set into batches of sequences of similar length, so that little is padded. The batches of epoch e are a pure function of (shuffle_seed, e);
/// a last batch that is not full stays last.
class SequenceLoader {
 public:
  /// Throws InputError for a set that check() refuses, and a batch size or bucket below 1.
  SequenceLoader(Sequences sequences, const SequenceLoaderOptions& options);

  const Sequences& sequences() const { return sequences_; }
  const SequenceLoaderOptions& options() const { return options_; }
  int64_t num_batches() const;
  SequenceBatch batch(int64_t epoch, int64_t index);
  /// Which sequences are in it.
  std::vector<int64_t> indices(int64_t epoch, int64_t index);

 private:
  void plan(int64_t epoch);

  Sequences sequences_;
  SequenceLoaderOptions options_;
  int64_t planned_ = -1;        // the epoch that order_ is of
  std::vector<int64_t> order_;  // sequences, batch after batch
};

/// The adding problem (Hochreiter & Schmidhuber 1997, in the form of Le, Jaitly & Hinton 2015): steps of (number in [0, 1), marker), with one marker
/// 1 in each half; the target is the sum of the two marked numbers. Saying 1 always has mean squared error 1/6. Throws InputError for length < 2
/// and sizes that no tensor has.
Sequences adding_problem(int64_t count, int64_t length, Rng rng);

inline constexpr int64_t copy_symbols = 8, copy_count = 10;
/// The copying problem (Hochreiter & Schmidhuber 1997; Arjovsky, Shah & Bengio 2016): ten symbols of eight kinds, `delay` blanks of which the last is
/// a signal, then ten blanks in which the symbols are to be said again: sequences of delay + 20 one-hot vectors [10] (8: blank, 9: signal), targets
/// [N, 10]. Guessing costs ln 8 = 2.08 nats. Throws InputError for delay < 1 and sizes that no tensor has.
Sequences copy_problem(int64_t count, int64_t delay, Rng rng);

}  // namespace lamina::data
