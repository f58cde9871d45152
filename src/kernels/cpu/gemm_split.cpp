#include "kernels/cpu/gemm_split.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <memory>
#include <new>
#include <optional>

#include <lamina/core/parallel.h>
#include "core/matrix_unit.h"
#include "kernels/cpu/scratch.h"

#if defined(__x86_64__) && defined(__linux__)

#include "kernels/cpu/gemm_split_tiles.h"

HWY_PUSH_ATTRIBUTES("avx512f,amx-tile,amx-bf16")

namespace lamina::kernels::cpu {
namespace {

// Bytes of the operand that is packed for all, at a time: with the other one's block they fit in a core's second cache.
constexpr int64_t kShared = 1200 << 10;

static_assert(kPanel<float> == kBlock);

/// A thread's own memory for tiles, which stays for its next call: within a team that walks a sequence nothing may throw, so it is not the pool's,
/// whose limit may be reached. `slot`: what is in use at the same time.
enum Slot { kRowTiles, kBlockTiles, kFirstSum, kSecondSum, kSlots };
Bf16* room(Slot slot, int64_t count) {
  struct Room {
    std::unique_ptr<Bf16[], void (*)(void*)> data{nullptr, std::free};
    int64_t count = 0;
  };
  static thread_local Room rooms[kSlots];
  Room& of = rooms[slot];
  if (of.count < count) {
    const size_t bytes = (static_cast<size_t>(count) * sizeof(Bf16) + 63) / 64 * 64;
    of.data.reset(static_cast<Bf16*>(std::aligned_alloc(64, bytes)));
    of.count = of.data ? count : 0;
    if (!of.data) throw std::bad_alloc();
  }
  return of.data.get();
}

/// One product. The smaller operand is packed for all threads, a group of its blocks at a time; blocks of the other one are shared out, and each is
/// packed by the thread that multiplies it with the whole group.
class Product {
 public:
  Product(int64_t m, int64_t n, int64_t k, const Matrix<float>& a, const Matrix<float>& b, float beta, float* c, int64_t ldc, const float* bias)
      : k_(k),
        a_(a),
        b_(b),
        beta_(beta),
        c_(c),
        ldc_(ldc),
        bias_(bias),
        rows_{a.data, a.ld, m, !a.transposed},
        columns_{b.data, b.ld, n, b.transposed} {
    // A's tiles stand along the depth and B's across. Which operand is taken for A decides what must be transposed: operands, or the result.
    const int64_t as_they_are = (rows_.along ? 0 : m * k) + (columns_.along ? n * k : 0);
    const int64_t exchanged = (rows_.along ? m * k : 0) + (columns_.along ? 0 : n * k) + m * n;
    exchanged_ = exchanged < as_they_are;
    rows_are_shared_ = m < n;
  }

  void run() const {
    const int64_t count = blocks_of(shared().count);
    // All of the depth at a time where a group stays large enough: C is read and written for every stretch of it.
    const int64_t most = k_ <= 1024 && count * steps_of(k_) * kStepSize * int64_t{sizeof(Bf16)} <= kShared ? 1024 : 512;
    const int64_t stretches = (k_ + most - 1) / most, depth = steps_of((k_ + stretches - 1) / stretches) * kStep;
    const int64_t block_size = depth / kStep * kStepSize, group = std::max<int64_t>(1, kShared / (block_size * int64_t{sizeof(Bf16)}));
    const Scratch<Bf16> packed(std::min(group, count) * block_size);
    for (int64_t j = 0; j < count; j += group)
      for (int64_t top = 0; top < k_; top += depth) stretch(j, std::min(count, j + group), top, std::min(k_, top + depth), packed.data());
  }

 private:
  const Operand& shared() const { return rows_are_shared_ ? rows_ : columns_; }
  const Operand& streamed() const { return rows_are_shared_ ? columns_ : rows_; }
  /// Whether an operand is taken for B.
  bool as_b(bool rows) const { return rows == exchanged_; }

  /// The sums' part [top, end), with the blocks [first, last) of the shared operand.
  void stretch(int64_t first, int64_t last, int64_t top, int64_t end, Bf16* packed) const {
    const int64_t steps = steps_of(end - top), block_size = steps * kStepSize, work = kBlock * kBlock * (end - top);
    Largest largest;
    parallel_for(last - first, std::max<int64_t>(1, (1 << 15) / (kBlock * (end - top))), [&](int64_t begin, int64_t stop) {
      for (int64_t block = begin; block < stop; ++block) {
        largest.take(pack(shared(), (first + block) * kBlock, top, end, as_b(rows_are_shared_), packed + block * block_size));
      }
    });
    if (!may_fit(largest.value())) return in_f32(0, blocks_of(streamed().count), first, last, top, end);
    parallel_for(blocks_of(streamed().count), std::max<int64_t>(1, (1 << 21) / (work * (last - first))), [&](int64_t begin, int64_t stop) {
      const TileRegisters registers;
      const Scratch<Bf16> packed_here(block_size);
      Bf16* const mine = packed_here.data();
      const bool mine_is_b = as_b(!rows_are_shared_);
      for (int64_t block = begin; block < stop; ++block) {
        if (!fit(pack(streamed(), block * kBlock, top, end, mine_is_b, mine), largest.value())) {
          in_f32(block, block + 1, first, last, top, end);
          continue;
        }
        for (int64_t other = first; other < last; ++other) {
          alignas(64) float sums[kBlock * kBlock];
          const Bf16* const theirs = packed + (other - first) * block_size;
          multiply(steps, mine_is_b ? theirs : mine, mine_is_b ? mine : theirs, false, sums);
          put_block(block, other, top, sums);
        }
      }
    });
  }

  /// The rows or columns of a block, of which there may be fewer than 32.
  static int64_t size(const Operand& o, int64_t block) { return std::min(kBlock, o.count - block * kBlock); }

  void put_block(int64_t block, int64_t other, int64_t top, float* sums) const {
    if (exchanged_) turn_block(sums);
    const int64_t i = rows_are_shared_ ? other : block, j = rows_are_shared_ ? block : other;
    put(sums, size(rows_, i), size(columns_, j), top == 0 ? beta_ : 1.0F, c_ + i * kBlock * ldc_ + j * kBlock, ldc_,
        bias_ && top == 0 ? bias_ + j * kBlock : nullptr);
  }

  /// What the unit cannot compute: streamed blocks times a group.
  void in_f32(int64_t block, int64_t stop, int64_t first, int64_t last, int64_t top, int64_t end) const {
    const auto count = [&](const Operand& o, int64_t from, int64_t to) { return std::min(to * kBlock, o.count) - from * kBlock; };
    const int64_t i = rows_are_shared_ ? first : block, i_end = rows_are_shared_ ? last : stop;
    const int64_t j = rows_are_shared_ ? block : first, j_end = rows_are_shared_ ? stop : last;
    const Matrix<float> a{rows_.at(i * kBlock, top), a_.ld, a_.transposed}, b{columns_.at(j * kBlock, top), b_.ld, b_.transposed};
    blocked_gemm(count(rows_, i, i_end), count(columns_, j, j_end), end - top, a, b, top == 0 ? beta_ : 1.0F, c_ + i * kBlock * ldc_ + j * kBlock,
                 ldc_, bias_ && top == 0 ? bias_ + j * kBlock : nullptr);
  }

  int64_t k_;
  Matrix<float> a_, b_;
  float beta_;
  float* c_;
  int64_t ldc_;
  const float* bias_;
  Operand rows_, columns_;
  bool exchanged_, rows_are_shared_;
};

/// Some rows, up to 32, of a product with packed operands.
class PackedRows {
 public:
  PackedRows(int64_t first, int64_t count, std::span<const SplitFactors> factors, Bf16* tiles) : first_(first), factors_(factors), tiles_(tiles) {
    uint32_t largest = 0;
    for (const SplitFactors& f : factors) {
      largest = std::max(largest, pack({f.a, f.lda, first + count, true}, first, 0, f.b->k, false, tiles));
      tiles += size_of(f);
    }
    for (int64_t i = 0; largest >= kTooLarge && i < count; ++i)
      if (row_is_large(first + i)) large_ |= 1U << i;
  }

  static int64_t size_of(const SplitFactors& f) { return steps_of(f.b->k) * kStepSize; }

  void times_panel(int64_t panel, float* sums) const {
    const Bf16* from = tiles_;
    for (const SplitFactors& f : factors_) {
      multiply(steps_of(f.b->k), from, f.b->split.get() + panel * size_of(f), from != tiles_, sums);
      from += size_of(f);
    }
    for (uint32_t rows = large_; rows != 0;) rows_in_f32(rows, panel, sums);
  }

 private:
  /// Some of `rows`, which are taken away from it.
  void rows_in_f32(uint32_t& rows, int64_t panel, float* sums) const {
    int64_t row[kRowsInF32];
    float* of_row[kRowsInF32];
    for (int i = 0; i < kRowsInF32; ++i) {
      row[i] = rows != 0 ? std::countr_zero(rows) : row[i - 1];
      rows &= rows - 1;
      of_row[i] = sums + row[i] * kBlock;
      std::fill_n(of_row[i], kBlock, 0.0F);
    }
    for (const SplitFactors& f : factors_) {
      const float* a[kRowsInF32];
      for (int i = 0; i < kRowsInF32; ++i) a[i] = f.a + (first_ + row[i]) * f.lda;
      multiply_in_f32(f.b->k, a, 1, f.b->data.get() + panel * kBlock * f.b->k, kBlock, kBlock, of_row);
    }
  }

  bool row_is_large(int64_t i) const {
    for (const SplitFactors& f : factors_)
      for (int64_t p = 0; p < f.b->k; ++p)
        if (!(std::abs(f.a[i * f.lda + p]) < 0x1p60F)) return true;
    return false;
  }

  int64_t first_;
  std::span<const SplitFactors> factors_;
  Bf16* tiles_;
  uint32_t large_ = 0;  // a bit for each row
};

/// Blocks of 32 rows of A^T B for one B, which is packed once.
class SumsOfTerms {
 public:
  SumsOfTerms(size_t which, std::span<const SplitTerms> terms, const SplitSums& result, int64_t block_size)
      : which_(which),
        terms_(terms),
        result_(result),
        block_size_(block_size),
        packed_(room(which == 0 ? kFirstSum : kSecondSum, blocks_of(result.n) * block_size)) {
    Bf16* to = packed_;
    for (int64_t j = 0; j < result.n; j += kBlock)
      for (const SplitTerms& t : terms) {
        const int64_t size = steps_of(t.rows) * kStepSize;
        if (const float* const b = t.b[which])
          largest_ = std::max(largest_, pack({b, result.n, result.n, false}, j, 0, t.rows, false, to));
        else
          std::fill_n(to, size, Bf16{0});
        to += size;
      }
  }

  /// Rows of C from i on, with A's block as B's tiles: its product with B's transpose is the result's transpose.
  void put_rows(int64_t i, int64_t m, const Bf16* a, uint32_t largest_a) const {
    const int64_t rows = std::min(kBlock, m - i);
    float* const c = result_.c + i * result_.n;
    if (!fit(largest_a, largest_)) return in_f32(i, m, rows, c);
    for (int64_t j = 0; j < result_.n; j += kBlock) {
      alignas(64) float sums[kBlock * kBlock];
      multiply(block_size_ / kStepSize, packed_ + j / kBlock * block_size_, a, false, sums);
      turn_block(sums);
      put(sums, rows, std::min(kBlock, result_.n - j), result_.beta, c + j, result_.n, nullptr);
    }
  }

 private:
  void in_f32(int64_t i, int64_t m, int64_t rows, float* c) const {
    for (int64_t j = 0; j < result_.n; j += kBlock) {
      const int64_t columns = std::min(kBlock, result_.n - j);
      alignas(64) float sums[kBlock * kBlock] = {};
      for (int64_t r = 0; r < rows; r += kRowsInF32)
        for (const SplitTerms& t : terms_) {
          const float* a[kRowsInF32];
          float* of_row[kRowsInF32];
          for (int64_t k = 0; k < kRowsInF32; ++k) {
            const int64_t row = std::min(r + k, rows - 1);
            a[k] = t.a + i + row;
            of_row[k] = sums + row * kBlock;
          }
          if (const float* const b = t.b[which_]) multiply_in_f32(t.rows, a, m, b + j, result_.n, columns, of_row);
        }
      put(sums, rows, columns, result_.beta, c + j, result_.n, nullptr);
    }
  }

  size_t which_;
  std::span<const SplitTerms> terms_;
  SplitSums result_;
  int64_t block_size_;
  Bf16* packed_;
  uint32_t largest_ = 0;
};

}  // namespace

void split_gemm(int64_t m, int64_t n, int64_t k, Matrix<float> a, Matrix<float> b, float beta, float* c, int64_t ldc, const float* bias) {
  if (m == 0 || n == 0) return;
  if (k == 0) return scale_and_bias(m, n, beta, c, ldc, bias);
  if (!lamina::detail::has_matrix_unit()) return own_gemm(m, n, k, a, b, beta, c, ldc, bias);
  Product(m, n, k, a, b, beta, c, ldc, bias).run();
}

void add_split(const Matrix<float>& b, Packed<float>& packed) {
  if (!lamina::detail::has_matrix_unit()) return;
  const Operand columns{b.data, b.ld, packed.n, b.transposed};
  const int64_t count = blocks_of(packed.n), size = steps_of(packed.k) * kStepSize;
  const std::shared_ptr<Bf16> blocks = shared_scratch<Bf16>(count * size);
  Largest largest;
  parallel_for(count, std::max<int64_t>(1, (1 << 15) / (kBlock * std::max<int64_t>(1, packed.k))), [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) largest.take(pack(columns, block * kBlock, 0, packed.k, true, blocks.get() + block * size));
  });
  if (fit(largest.value(), largest.value())) packed.split = blocks;
}

void split_product(int64_t rows, int64_t begin, int64_t end, std::span<const SplitFactors> factors, float beta, float* c, int64_t ldc,
                   const float* bias) {
  int64_t size = 0;
  for (const SplitFactors& f : factors) size += PackedRows::size_of(f);
  Bf16* const tiles = room(kRowTiles, size);
  const TileRegisters registers;
  for (int64_t i = 0; i < rows; i += kBlock) {
    const int64_t count = std::min(kBlock, rows - i);
    const PackedRows packed(i, count, factors, tiles);
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t j = panel * kBlock;
      alignas(64) float sums[kBlock * kBlock];
      packed.times_panel(panel, sums);
      put(sums, count, std::min(kBlock, factors[0].b->n - j), beta, c + i * ldc + j, ldc, bias ? bias + j : nullptr);
    }
  }
}

void split_sums(int64_t begin, int64_t end, std::span<const SplitTerms> terms, int64_t m, const std::array<SplitSums, 2>& results) {
  int64_t block_size = 0;
  for (const SplitTerms& t : terms) block_size += steps_of(t.rows) * kStepSize;
  std::optional<SumsOfTerms> sums[2];
  for (size_t i = 0; i < 2; ++i)
    if (results[i].c) sums[i].emplace(i, terms, results[i], block_size);
  Bf16* const packed = room(kBlockTiles, block_size);
  const TileRegisters registers;
  for (int64_t block = begin; block < end; ++block) {
    uint32_t largest = 0;
    Bf16* to = packed;
    for (const SplitTerms& t : terms) {
      largest = std::max(largest, pack({t.a, m, m, false}, block * kBlock, 0, t.rows, true, to));
      to += steps_of(t.rows) * kStepSize;
    }
    for (const std::optional<SumsOfTerms>& of : sums)
      if (of) of->put_rows(block * kBlock, m, packed, largest);
  }
}

}  // namespace lamina::kernels::cpu

HWY_POP_ATTRIBUTES

#else

namespace lamina::kernels::cpu {

void split_gemm(int64_t m, int64_t n, int64_t k, Matrix<float> a, Matrix<float> b, float beta, float* c, int64_t ldc, const float* bias) {
  own_gemm(m, n, k, a, b, beta, c, ldc, bias);
}
void add_split(const Matrix<float>&, Packed<float>&) {}
void split_product(int64_t, int64_t, int64_t, std::span<const SplitFactors>, float, float*, int64_t, const float*) {}
void split_sums(int64_t, int64_t, std::span<const SplitTerms>, int64_t, const std::array<SplitSums, 2>&) {}

}  // namespace lamina::kernels::cpu

#endif
