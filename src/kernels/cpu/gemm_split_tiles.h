#pragma once
// What the processor's matrix unit works on, and what surrounds it: numbers cut in three and laid out as tiles, products of tiles, and results on
// their way to C. For gemm_split.cpp alone, on x86-64 with AVX-512 and AMX.

#include <algorithm>
#include <atomic>
#include <cstdint>

#include <hwy/base.h>

HWY_DIAGNOSTICS(push)  // GCC's own header starts from values that it then warns of
HWY_DIAGNOSTICS_OFF(disable : 4701, ignored "-Wuninitialized")
#if HWY_COMPILER_GCC_ACTUAL
HWY_DIAGNOSTICS_OFF(disable : 4701, ignored "-Wmaybe-uninitialized")
#endif
#include <immintrin.h>
HWY_DIAGNOSTICS(pop)

HWY_PUSH_ATTRIBUTES("avx512f,amx-tile,amx-bf16")

namespace lamina::kernels::cpu {
namespace {

using Bf16 = uint16_t;

// A tile is 16 lines of 16 pairs of bf16. Operands stand in blocks of 32 rows of A (or columns of B): for every 32 numbers of depth, a step, the
// three parts of both halves of the block, a tile each. A pair holds what is 16 apart in depth, so that two vectors of f32 make a line without a
// shuffle.
constexpr int64_t kLine = 32, kTile = 16 * kLine, kBlock = 32, kStep = 32, kStepSize = 6 * kTile;
constexpr int64_t kPart = 2 * kTile;  // from one part of a step to the next

int64_t blocks_of(int64_t count) { return (count + kBlock - 1) / kBlock; }
int64_t steps_of(int64_t depth) { return (depth + kStep - 1) / kStep; }

/// Eight registers, tiles all of them.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
constexpr TileConfig tile_config;

/// The tile registers are ours as long as this lives.
class TileRegisters {
 public:
  TileRegisters() { _tile_loadconfig(&tile_config); }
  ~TileRegisters() { _tile_release(); }
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;
};

/// sums [32,32] = a block of A times a block of B, or that is added.
HWY_NOINLINE void multiply(int64_t steps, const Bf16* a, const Bf16* b, bool add, float* sums) {
  constexpr int line = 64, row = kBlock * sizeof(float);
  __asm__ volatile("" ::: "memory");  // compilers do not know that the unit reads memory
  // Registers 0 to 3 add up the quarters of the result, 4 and 5 hold the halves of A's block, 6 and 7 those of B's.
#define LAMINA_LOAD_A(from)   \
  _tile_loadd(4, from, line); \
  _tile_loadd(5, from + kTile, line)
#define LAMINA_LOAD_B(from)   \
  _tile_loadd(6, from, line); \
  _tile_loadd(7, from + kTile, line)
#define LAMINA_MULTIPLY()  \
  _tile_dpbf16ps(0, 4, 6); \
  _tile_dpbf16ps(1, 4, 7); \
  _tile_dpbf16ps(2, 5, 6); \
  _tile_dpbf16ps(3, 5, 7)
  if (add) {
    _tile_loadd(0, sums, row);
    _tile_loadd(1, sums + 16, row);
    _tile_loadd(2, sums + 16 * kBlock, row);
    _tile_loadd(3, sums + 16 * kBlock + 16, row);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t step = 0; step < steps; ++step, a += kStepSize, b += kStepSize) {
    LAMINA_LOAD_A(a);
    LAMINA_LOAD_B(b + 2 * kPart);
    LAMINA_MULTIPLY();
    LAMINA_LOAD_B(b + kPart);
    LAMINA_MULTIPLY();
    LAMINA_LOAD_A(a + kPart);
    LAMINA_MULTIPLY();
    LAMINA_LOAD_B(b);
    LAMINA_MULTIPLY();
    LAMINA_LOAD_A(a + 2 * kPart);
    LAMINA_MULTIPLY();
    LAMINA_LOAD_A(a);
    LAMINA_MULTIPLY();
  }
#undef LAMINA_MULTIPLY
#undef LAMINA_LOAD_B
#undef LAMINA_LOAD_A
  _tile_stored(0, sums, row);
  _tile_stored(1, sums + 16, row);
  _tile_stored(2, sums + 16 * kBlock, row);
  _tile_stored(3, sums + 16 * kBlock + 16, row);
}

__mmask16 first(int64_t count) { return static_cast<__mmask16>(count >= 16 ? 0xffff : count <= 0 ? 0 : (1 << count) - 1); }

/// For what the unit cannot multiply: up to 8 rows of sums, 32 numbers each, grow by A B in f32, in the order of the depth. Number p of row i of A is
/// a[i][p * step], and row p of B begins at b + p * ldb. Rows may be given twice.
constexpr int kRowsInF32 = 8;
HWY_NOINLINE void multiply_in_f32(int64_t depth, const float* const (&a)[kRowsInF32], int64_t step, const float* b, int64_t ldb, int64_t columns,
                                  float* const (&sums)[kRowsInF32]) {
  const __mmask16 left = first(columns), right = first(columns - 16);
  __m512 sum[kRowsInF32][2];
  for (int i = 0; i < kRowsInF32; ++i) sum[i][0] = _mm512_loadu_ps(sums[i]), sum[i][1] = _mm512_loadu_ps(sums[i] + 16);
  for (int64_t p = 0; p < depth; ++p, b += ldb) {
    const __m512 b_left = _mm512_maskz_loadu_ps(left, b), b_right = _mm512_maskz_loadu_ps(right, right ? b + 16 : b);
    for (int i = 0; i < kRowsInF32; ++i) {
      const __m512 factor = _mm512_set1_ps(a[i][p * step]);
      sum[i][0] = _mm512_fmadd_ps(factor, b_left, sum[i][0]), sum[i][1] = _mm512_fmadd_ps(factor, b_right, sum[i][1]);
    }
  }
  for (int i = 0; i < kRowsInF32; ++i) _mm512_storeu_ps(sums[i], sum[i][0]), _mm512_storeu_ps(sums[i] + 16, sum[i][1]);
}

/// Transposes 16x16 numbers of 32 bits, whose lines are `ld` apart, where they stand.
void turn(uint32_t* tile, int64_t ld) {
  __m512i x[16], y[16];
  for (int i = 0; i < 16; i += 2) {
    const __m512i first = _mm512_loadu_si512(tile + i * ld), second = _mm512_loadu_si512(tile + (i + 1) * ld);
    x[i] = _mm512_unpacklo_epi32(first, second), x[i + 1] = _mm512_unpackhi_epi32(first, second);
  }
  // y[i + j] has in its quarter q the column 4 q + j of rows i to i + 3.
  for (int i = 0; i < 16; i += 4) {
    y[i] = _mm512_unpacklo_epi64(x[i], x[i + 2]), y[i + 1] = _mm512_unpackhi_epi64(x[i], x[i + 2]);
    y[i + 2] = _mm512_unpacklo_epi64(x[i + 1], x[i + 3]), y[i + 3] = _mm512_unpackhi_epi64(x[i + 1], x[i + 3]);
  }
  for (int j = 0; j < 4; ++j) {
    const __m512i even = _mm512_shuffle_i32x4(y[j], y[4 + j], 0x88), odd = _mm512_shuffle_i32x4(y[j], y[4 + j], 0xdd);
    const __m512i even_after = _mm512_shuffle_i32x4(y[8 + j], y[12 + j], 0x88), odd_after = _mm512_shuffle_i32x4(y[8 + j], y[12 + j], 0xdd);
    _mm512_storeu_si512(tile + j * ld, _mm512_shuffle_i32x4(even, even_after, 0x88));
    _mm512_storeu_si512(tile + (4 + j) * ld, _mm512_shuffle_i32x4(odd, odd_after, 0x88));
    _mm512_storeu_si512(tile + (8 + j) * ld, _mm512_shuffle_i32x4(even, even_after, 0xdd));
    _mm512_storeu_si512(tile + (12 + j) * ld, _mm512_shuffle_i32x4(odd, odd_after, 0xdd));
  }
}

/// A's rows or B's columns: number p of the depth of row i is data[i * ld + p], or where `along` the depth they do not stand, data[p * ld + i].
struct Operand {
  const float* data;
  int64_t ld, count;
  bool along;

  const float* at(int64_t i, int64_t p) const { return along ? data + i * ld + p : data + p * ld + i; }
};

/// Takes from x its leading 8 bits, rounded to the nearest.
__m512i take(__m512& x) {
  const __m512i bits = _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000)), _mm512_set1_epi32(-0x10000));
  x = _mm512_sub_ps(x, _mm512_castsi512_ps(bits));
  return bits;
}

/// A half of a step of a block: 16 of the operand from i on, of the depth [p, p + 32), where it ends at `end`. Tiles stand as the operand does.
/// Returns the largest magnitudes: of those given and the tiles'.
__m512i pack_tiles(const Operand& o, int64_t i, int64_t p, int64_t end, Bf16* tiles, __m512i largest) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  // Along a line of memory, and from line to line, there may be less than 16; the high ones of pairs are 16 further in depth.
  const int64_t count = o.count - i, depth = end - p;
  const __mmask16 low_mask = first(o.along ? depth : count), high_mask = first(o.along ? depth - 16 : count);
  const int64_t low_lines = o.along ? count : depth, high_lines = o.along ? count : depth - 16;
  const float *const low_from = o.at(i, p), *const high_from = high_mask && high_lines > 0 ? o.at(i, p + 16) : o.data;
  for (int64_t line = 0; line < 16; ++line) {
    const bool low_there = line < low_lines, high_there = line < high_lines;
    __m512 low = _mm512_maskz_loadu_ps(low_there ? low_mask : 0, low_there ? low_from + line * o.ld : o.data);
    __m512 high = _mm512_maskz_loadu_ps(high_there ? high_mask : 0, high_there ? high_from + line * o.ld : o.data);
    largest = _mm512_max_epu32(largest, _mm512_and_si512(_mm512_castps_si512(low), magnitude));
    largest = _mm512_max_epu32(largest, _mm512_and_si512(_mm512_castps_si512(high), magnitude));
    for (int64_t part = 0; part < 3; ++part) {
      const __m512i l = part < 2 ? take(low) : _mm512_castps_si512(low), h = part < 2 ? take(high) : _mm512_castps_si512(high);
      _mm512_storeu_si512(tiles + part * kPart + line * kLine, _mm512_or_si512(_mm512_srli_epi32(l, 16), h));
    }
  }
  return largest;
}

/// The block of 32 from i on, of the depth [begin, end), as A's or B's. Returns the bits of the largest magnitude.
uint32_t pack(const Operand& o, int64_t i, int64_t begin, int64_t end, bool as_b, Bf16* to) {
  __m512i largest = _mm512_setzero_si512();
  for (int64_t p = begin; p < end; p += kStep, to += kStepSize) {
    for (Bf16* const tiles : {to, to + kTile}) {
      largest = pack_tiles(o, tiles == to ? i : i + 16, p, end, tiles, largest);
      if (o.along != as_b) continue;
      for (int64_t part = 0; part < 3; ++part) turn(reinterpret_cast<uint32_t*>(tiles + part * kPart), kLine / 2);
    }
  }
  return _mm512_reduce_max_epu32(largest);
}

/// The largest of what threads find.
class Largest {
 public:
  void take(uint32_t found) {
    for (uint32_t before = value_; before < found && !value_.compare_exchange_weak(before, found);) continue;
  }
  uint32_t value() const { return value_; }

 private:
  std::atomic<uint32_t> value_ = 0;
};

constexpr uint32_t bits_of_power(int exponent) { return static_cast<uint32_t>(exponent + 127) << 23; }

/// The bits of the first magnitude that is not for the unit, which includes infinities and NaN.
constexpr uint32_t kTooLarge = bits_of_power(60);

/// Whether operands with these largest magnitudes are for the unit: what it takes for zero, and the digits that this costs others, could not be seen
/// beside the products of the largest.
bool fit(uint32_t a, uint32_t b) {
  if (std::max(a, b) >= kTooLarge) return false;
  return std::min(a, b) == 0 || (std::min(a, b) >= bits_of_power(-90) && int64_t{a >> 23} + int64_t{b >> 23} >= 2 * 127 - 80);
}

/// Whether one of them fits at least some others than zeros.
bool may_fit(uint32_t a) { return fit(a, kTooLarge - 1); }

/// rows x columns of C (+)= sums [32,32], as GemmKernels::gemm says.
void put(const float* sums, int64_t rows, int64_t columns, float beta, float* c, int64_t ldc, const float* bias) {
  for (int64_t j = 0; j < columns; j += 16) {
    const __mmask16 mask = first(columns - j);
    const __m512 offset = bias ? _mm512_maskz_loadu_ps(mask, bias + j) : _mm512_setzero_ps();
    for (int64_t i = 0; i < rows; ++i) {
      float* const to = c + i * ldc + j;
      const __m512 start = beta == 0 ? offset : _mm512_add_ps(_mm512_mul_ps(_mm512_set1_ps(beta), _mm512_maskz_loadu_ps(mask, to)), offset);
      _mm512_mask_storeu_ps(to, mask, _mm512_add_ps(start, _mm512_loadu_ps(sums + i * kBlock + j)));
    }
  }
}

/// The transpose of [32,32].
void turn_block(float* sums) {
  for (int64_t quarter = 0; quarter < 4; ++quarter) turn(reinterpret_cast<uint32_t*>(sums + quarter / 2 * 16 * kBlock + quarter % 2 * 16), kBlock);
  for (int64_t i = 0; i < 16; ++i) {
    float *const right = sums + i * kBlock + 16, *const below = sums + (16 + i) * kBlock;
    const __m512 saved = _mm512_loadu_ps(right);
    _mm512_storeu_ps(right, _mm512_loadu_ps(below));
    _mm512_storeu_ps(below, saved);
  }
}

}  // namespace
}  // namespace lamina::kernels::cpu

HWY_POP_ATTRIBUTES
