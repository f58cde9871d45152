#include <lamina/data/sequences.h>

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "core/format.h"

namespace lamina::data {
namespace {

// The row of steps at which each sequence starts, and the number of rows; throws where lengths and rows do not agree.
std::vector<int64_t> starts_of(const Sequences& s) {
  std::vector<int64_t> starts{0};
  starts.reserve(s.lengths.size() + 1);
  for (size_t i = 0; i < s.lengths.size(); ++i) {
    if (s.lengths[i] < 0) fail_input("sequences", "lengths: expected at least 0, got {} at position {}", s.lengths[i], i);
    int64_t sum = 0;
    starts.push_back(__builtin_add_overflow(starts.back(), s.lengths[i], &sum) ? std::numeric_limits<int64_t>::max() : sum);
  }
  if (starts.back() != s.steps.size(0))
    fail_input("sequences", "lengths: expected a sum of {}, the rows of steps, got {}", s.steps.size(0), starts.back());
  if (s.targets.rank() == 0 || s.targets.size(0) != s.size())
    fail_input("sequences", "targets: expected {} rows, one for each sequence, got {}", s.size(), s.targets.shape());
  return starts;
}

Tensor rows(const Tensor& tensor, std::span<const int64_t> indices) {
  Tensor result = Tensor::empty(tensor.shape().with(0, static_cast<int64_t>(indices.size())), tensor.dtype());
  const auto bytes = static_cast<size_t>(tensor.size(0) == 0 ? 0 : tensor.nbytes() / tensor.size(0));
  const auto* from = static_cast<const char*>(tensor.raw_data());
  auto* to = static_cast<char*>(result.mutable_raw_data());
  for (size_t i = 0; i < indices.size() && bytes > 0; ++i) std::memcpy(to + i * bytes, from + static_cast<size_t>(indices[i]) * bytes, bytes);
  return result;
}

void check_indices(const Sequences& sequences, std::span<const int64_t> indices) {
  for (const int64_t i : indices)
    if (i < 0 || i >= sequences.size()) fail_input("sequences", "index: expected 0 to {}, got {}", sequences.size() - 1, i);
}

// f32 [count * length, width] has a size that can be counted; more than there is memory is found out by asking for it.
void check_size(const char* problem, int64_t count, int64_t length, int64_t width) {
  int64_t bytes = 0;
  if (count < 0) fail_input(problem, "count: expected at least 0, got {}", count);
  if (__builtin_mul_overflow(count, length, &bytes) || __builtin_mul_overflow(bytes, width * 8, &bytes))
    fail_input(problem, "{} sequences of {} steps are too large", count, length);
}

}  // namespace

Sequences Sequences::select(std::span<const int64_t> indices) const {
  check_indices(*this, indices);
  const std::vector<int64_t> starts = starts_of(*this);
  Sequences result{{}, {}, rows(targets, indices)};
  std::vector<int64_t> step_rows;
  for (const int64_t i : indices) {
    result.lengths.push_back(lengths[static_cast<size_t>(i)]);
    for (int64_t row = starts[static_cast<size_t>(i)]; row < starts[static_cast<size_t>(i) + 1]; ++row) step_rows.push_back(row);
  }
  result.steps = rows(steps, step_rows);
  return result;
}

void check(const Sequences& s) {
  if (!s.steps.defined() || !s.targets.defined()) fail_input("sequences", "expected steps and targets, got an undefined tensor");
  if (s.steps.rank() != 2 || s.steps.dtype() != DType::f32)
    fail_input("sequences", "steps: expected f32 [sum of lengths, C], got {} {}", s.steps.dtype(), s.steps.shape());
  if (s.lengths.empty()) fail_input("sequences", "expected at least one sequence, got none");
  const bool classes = s.targets.dtype() == DType::i64 && (s.targets.rank() == 1 || s.targets.rank() == 2);
  const bool numbers = s.targets.dtype() == DType::f32 && s.targets.rank() == 2;
  if ((!classes && !numbers) || s.targets.size(0) != s.size())
    fail_input("sequences", "targets: expected i64 [{0}], i64 [{0}, R] or f32 [{0}, K], got {1} {2}", s.size(), s.targets.dtype(), s.targets.shape());
  starts_of(s);
}

uint32_t checksum(const Sequences& s) {
  uLong crc = crc32_z(0, reinterpret_cast<const Bytef*>(s.lengths.data()), s.lengths.size() * sizeof(int64_t));
  for (const Tensor* tensor : {&s.steps, &s.targets})
    crc = crc32_z(crc, static_cast<const Bytef*>(tensor->raw_data()), static_cast<size_t>(tensor->nbytes()));
  return static_cast<uint32_t>(crc);
}

SequenceBatch pad(const Sequences& sequences) {
  std::vector<int64_t> all(sequences.lengths.size());
  std::iota(all.begin(), all.end(), 0);
  return pad(sequences, all);
}

SequenceBatch pad(const Sequences& sequences, std::span<const int64_t> indices) {
  check_indices(sequences, indices);
  const std::vector<int64_t> starts = starts_of(sequences);
  const auto count = static_cast<int64_t>(indices.size()), width = sequences.width();
  SequenceBatch batch{{}, {}, rows(sequences.targets, indices)};
  for (const int64_t i : indices) batch.lengths.push_back(sequences.lengths[static_cast<size_t>(i)]);
  const int64_t longest = batch.lengths.empty() ? 0 : std::ranges::max(batch.lengths);
  batch.x = Tensor::zeros({longest, count, width});
  float* x = batch.x.mutable_data<float>();
  const float* from = sequences.steps.data<float>();
  for (int64_t n = 0; n < count; ++n)
    for (int64_t t = 0; t < batch.lengths[static_cast<size_t>(n)]; ++t)
      std::copy_n(from + (starts[static_cast<size_t>(indices[static_cast<size_t>(n)])] + t) * width, width, x + (t * count + n) * width);
  if (std::ranges::all_of(batch.lengths, [longest](int64_t length) { return length == longest; })) batch.lengths.clear();
  return batch;
}

SequenceLoader::SequenceLoader(Sequences sequences, const SequenceLoaderOptions& options) : sequences_(std::move(sequences)), options_(options) {
  check(sequences_);
  if (options.batch_size < 1) fail_input("sequences", "batch_size: expected at least 1, got {}", options.batch_size);
  if (options.bucket < 1) fail_input("sequences", "bucket: expected at least 1, got {}", options.bucket);
}

int64_t SequenceLoader::num_batches() const {
  const int64_t size = options_.batch_size, whole = sequences_.size() / size, rest = sequences_.size() % size;
  return whole + (rest > 0 && !(options_.drop_single && rest == 1 && whole > 0) ? 1 : 0);
}

void SequenceLoader::plan(int64_t epoch) {
  if (planned_ == epoch) return;
  planned_ = epoch;
  order_.resize(sequences_.lengths.size());
  std::iota(order_.begin(), order_.end(), 0);
  if (!options_.shuffle) return;
  Rng rng = Rng(options_.shuffle_seed).stream(fmt::format("data/sequences/{}", epoch));
  order_ = randperm(sequences_.size(), rng).to_vector<int64_t>();
  if (options_.bucket == 1) return;
  // Full batches of neighbours in length, in random order; what does not fill a batch is not sorted, so that it is not always the longest.
  const int64_t size = options_.batch_size, batches = sequences_.size() / size, full = batches * size;
  const int64_t pool = options_.bucket > batches ? full : options_.bucket * size;
  const auto length = [this](int64_t i) { return sequences_.lengths[static_cast<size_t>(i)]; };
  for (int64_t begin = 0; begin < full; begin += pool)
    std::ranges::stable_sort(order_.begin() + begin, order_.begin() + std::min(begin + pool, full), {}, length);
  const std::vector<int64_t> sorted = order_, place = randperm(batches, rng).to_vector<int64_t>();
  for (int64_t b = 0; b < batches; ++b) std::copy_n(sorted.begin() + place[static_cast<size_t>(b)] * size, size, order_.begin() + b * size);
}

std::vector<int64_t> SequenceLoader::indices(int64_t epoch, int64_t index) {
  if (index < 0 || index >= num_batches()) fail("sequences", "batch: expected 0 to {}, got {}", num_batches() - 1, index);
  plan(epoch);
  const int64_t begin = index * options_.batch_size, end = std::min(begin + options_.batch_size, sequences_.size());
  return {order_.begin() + begin, order_.begin() + end};
}

SequenceBatch SequenceLoader::batch(int64_t epoch, int64_t index) { return pad(sequences_, indices(epoch, index)); }

Sequences adding_problem(int64_t count, int64_t length, Rng rng) {
  if (length < 2) fail_input("adding", "length: expected at least 2, got {}", length);
  check_size("adding", count, length, 2);
  Sequences s{Tensor::zeros({count * length, 2}), std::vector<int64_t>(static_cast<size_t>(count), length), Tensor::empty({count, 1})};
  const Tensor numbers = rand({count * length}, rng);
  const float* number = numbers.data<float>();
  float *step = s.steps.mutable_data<float>(), *target = s.targets.mutable_data<float>();
  for (int64_t i = 0; i < count * length; ++i) step[2 * i] = number[i];
  for (int64_t n = 0; n < count; ++n) {
    const int64_t half = length / 2, first = n * length + rng.below(half), second = n * length + half + rng.below(length - half);
    step[2 * first + 1] = step[2 * second + 1] = 1;
    target[n] = number[first] + number[second];
  }
  return s;
}

Sequences copy_problem(int64_t count, int64_t delay, Rng rng) {
  if (delay < 1) fail_input("copy", "length: expected at least 1, got {}", delay);
  const int64_t width = copy_symbols + 2, blank = copy_symbols, signal = copy_symbols + 1;
  check_size("copy", std::max<int64_t>(count, 1), delay, width);  // so that the sum below is in range
  const int64_t length = delay + 2 * copy_count;
  check_size("copy", count, length, width);
  Sequences s{Tensor::zeros({count * length, width}), std::vector<int64_t>(static_cast<size_t>(count), length),
              randint({count, copy_count}, 0, copy_symbols, rng)};
  const int64_t* symbols = s.targets.data<int64_t>();
  float* step = s.steps.mutable_data<float>();
  for (int64_t n = 0; n < count; ++n)
    for (int64_t t = 0; t < length; ++t, step += width)
      step[t < copy_count ? symbols[n * copy_count + t] : t == copy_count + delay - 1 ? signal : blank] = 1;
  return s;
}

}  // namespace lamina::data
