#include "runtime/trainer/kernels/cpu/tile_products.h"

#include <cstddef>
#include <cstring>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "runtime/base/result.h"

namespace shardrun::kernels::tiles {
namespace {

#if defined(__x86_64__)

#define SHARDRUN_BF16 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))
#define SHARDRUN_AMX __attribute__((target("avx512f,amx-tile,amx-bf16")))

constexpr int64_t kLanes = 16;  // fp32 sums, and so words of b, of one register

// A register of words, which may lie at any multiple of 4 bytes.
typedef uint32_t Words __attribute__((vector_size(64), aligned(4), may_alias));
#define SHARDRUN_INTERLEAVED(a, b, i, j, k, l)                                                             \
  __builtin_shufflevector(a, b, i, j, k, l, (i) + 4, (j) + 4, (k) + 4, (l) + 4, (i) + 8, (j) + 8, (k) + 8, \
                          (l) + 8, (i) + 12, (j) + 12, (k) + 12, (l) + 12)
#define SHARDRUN_QUARTERS(a, b, i, j)                                                                 \
  __builtin_shufflevector(a, b, i, (i) + 1, (i) + 2, (i) + 3, j, (j) + 1, (j) + 2, (j) + 3, (i) + 16, \
                          (i) + 17, (i) + 18, (i) + 19, (j) + 16, (j) + 17, (j) + 18, (j) + 19)

// Transposes 16 × 16 words; rows are in_stride and out_stride words apart.
SHARDRUN_BF16 inline void transpose_block(uint32_t* out, int64_t out_stride, const uint32_t* in,
                                          int64_t in_stride) {
  Words a[16], b[16];
  for (int r = 0; r < 16; ++r) a[r] = *reinterpret_cast<const Words*>(in + r * in_stride);
  for (int r = 0; r < 16; r += 2) {  // pairs of words of two rows
    b[r] = SHARDRUN_INTERLEAVED(a[r], a[r + 1], 0, 16, 1, 17);
    b[r + 1] = SHARDRUN_INTERLEAVED(a[r], a[r + 1], 2, 18, 3, 19);
  }
  for (int r = 0; r < 16; r += 4) {  // in quarter q of a[r + i]: column 4q + i of four rows
    a[r] = SHARDRUN_INTERLEAVED(b[r], b[r + 2], 0, 1, 16, 17);
    a[r + 1] = SHARDRUN_INTERLEAVED(b[r], b[r + 2], 2, 3, 18, 19);
    a[r + 2] = SHARDRUN_INTERLEAVED(b[r + 1], b[r + 3], 0, 1, 16, 17);
    a[r + 3] = SHARDRUN_INTERLEAVED(b[r + 1], b[r + 3], 2, 3, 18, 19);
  }
  for (int i = 0; i < 4; ++i) {  // quarters 0 and 2, and 1 and 3, of rows 0 to 7 and of rows 8 to 15
    b[i] = SHARDRUN_QUARTERS(a[i], a[4 + i], 0, 8);
    b[4 + i] = SHARDRUN_QUARTERS(a[i], a[4 + i], 4, 12);
    b[8 + i] = SHARDRUN_QUARTERS(a[8 + i], a[12 + i], 0, 8);
    b[12 + i] = SHARDRUN_QUARTERS(a[8 + i], a[12 + i], 4, 12);
  }
  const auto row = [&](int i) -> Words& { return *reinterpret_cast<Words*>(out + i * out_stride); };
  for (int i = 0; i < 4; ++i) {
    row(i) = SHARDRUN_QUARTERS(b[i], b[8 + i], 0, 8);
    row(4 + i) = SHARDRUN_QUARTERS(b[4 + i], b[12 + i], 0, 8);
    row(8 + i) = SHARDRUN_QUARTERS(b[i], b[8 + i], 4, 12);
    row(12 + i) = SHARDRUN_QUARTERS(b[4 + i], b[12 + i], 4, 12);
  }
}

SHARDRUN_BF16 void interleave(uint32_t* __restrict out, const Bf16* __restrict b, int64_t rows,
                              int64_t columns, int64_t stride) {
  for (int64_t p = 0; p < rows / 2; ++p) {
    const Bf16 *low = b + 2 * p * stride, *high = low + stride;
    for (int64_t n = 0; n < columns; ++n)
      out[p * columns + n] = static_cast<uint32_t>(low[n].bits) | static_cast<uint32_t>(high[n].bits) << 16;
  }
}

// Takes the halves of words (rows, columns) apart, into twice as many rows.
SHARDRUN_BF16 void take_apart(Bf16* __restrict out, int64_t ld, const uint32_t* __restrict words,
                              int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; ++r) {
    Bf16 *low = out + 2 * r * ld, *high = low + ld;
    for (int64_t c = 0; c < columns; ++c) low[c].bits = static_cast<uint16_t>(words[r * columns + c]);
    for (int64_t c = 0; c < columns; ++c) high[c].bits = static_cast<uint16_t>(words[r * columns + c] >> 16);
  }
}

const uint32_t* words_of(const Bf16* pairs) {
  return reinterpret_cast<const uint32_t*>(pairs);
}

// Computes 4 rows × kVectors registers of c. The registers are addressed by constants: see small_products.cpp.
template <size_t kVectors, size_t... I>
SHARDRUN_BF16 inline void dot_block(float* c, int64_t ldc, const Bf16* a, int64_t lda, const uint32_t* b,
                                    int64_t ldb, int64_t inner, bool accumulate, std::index_sequence<I...>) {
  const auto at = [&](size_t i) __attribute__((always_inline)) {
    return c + static_cast<int64_t>(i / kVectors) * ldc + static_cast<int64_t>(i % kVectors) * kLanes;
  };
  __m512 sums[sizeof...(I)] = {(accumulate ? _mm512_loadu_ps(at(I)) : _mm512_setzero_ps())...};
  for (int64_t p = 0; p < inner / 2; ++p) {
    const uint32_t* y = b + p * ldb;
    const auto word = [&](size_t r) __attribute__((always_inline)) {
      int32_t both;
      std::memcpy(&both, a + static_cast<int64_t>(r) * lda + 2 * p, sizeof both);
      return both;
    };
    ((sums[I] = _mm512_dpbf16_ps(
          sums[I], reinterpret_cast<__m512bh>(_mm512_set1_epi32(word(I / kVectors))),
          reinterpret_cast<__m512bh>(_mm512_loadu_si512(y + static_cast<int64_t>(I % kVectors) * kLanes)))),
     ...);
  }
  (_mm512_storeu_ps(at(I), sums[I]), ...);
}

SHARDRUN_BF16 void multiply_dots(float* c, int64_t ldc, const Bf16* a, int64_t lda, const uint32_t* b,
                                 int64_t ldb, int64_t rows, int64_t inner, int64_t columns, bool accumulate) {
  constexpr size_t kRows = 4;
  for (int64_t n = 0; n < columns;) {
    const int64_t wide = columns - n >= 4 * kLanes ? 4 : 2;
    for (int64_t m = 0; m < rows; m += kRows) {
      if (wide == 4)
        dot_block<4>(c + m * ldc + n, ldc, a + m * lda, lda, b + n, ldb, inner, accumulate,
                     std::make_index_sequence<kRows * 4>());
      else
        dot_block<2>(c + m * ldc + n, ldc, a + m * lda, lda, b + n, ldb, inner, accumulate,
                     std::make_index_sequence<kRows * 2>());
    }
    n += wide * kLanes;
  }
}

void multiply_strip_dots(float* c, const uint32_t* strip, const uint32_t* group, int64_t steps,
                         bool accumulate) {
  constexpr size_t kRows = 4;
  for (int64_t step = 0; step < steps; ++step) {
    for (int64_t m = 0; m < kTile; m += kRows)
      dot_block<1>(c + m * kTileColumns, kTileColumns,
                   reinterpret_cast<const Bf16*>(strip + (step * kTile + m) * kLanes), kTile,
                   group + step * kLanes * kLanes, kLanes, kTile, accumulate || step > 0,
                   std::make_index_sequence<kRows>());
  }
}

// What LDTILECFG reads: palette 1 and, for each tile register, its bytes a row and its rows.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileShapes) == 64);
// It is a constant in memory since GCC's _tile_loadconfig names only the first 8 bytes as read: in a variable of a function,
// GCC leaves out what is written behind them.
constinit const TileShapes kTileShapes;

SHARDRUN_AMX void load_tile_shapes() {
  _tile_loadconfig(&kTileShapes);
}

// Nor does GCC know that the instructions of tiles read memory: nothing may be written behind this that they read.
void write_before_tiles_read() {
  __asm__ volatile("" ::: "memory");
}

SHARDRUN_AMX void release_tiles() {
  _tile_release();
}

// Linux gives a process the tiles' state when it asks for it once.
bool ask_for_tiles() {
  constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}

// Where the tiles of an operand lie: bytes from a row to the next, and from a tile to the next of greater depth.
struct TileOrder {
  int64_t row, step;
};

// Computes 32 × 16 elements of c in tiles 0 and 1; tile 2 has rows of a, tile 3 columns of b. Four sums in place of two would need
// two thirds of the loads, but have all tiles in use, which makes a core twice as slow in one of its states (decision 0161).
SHARDRUN_AMX inline void multiply_two(float* c, int64_t c_row, const std::byte* a, TileOrder a_order,
                                      const std::byte* b, TileOrder b_order, int64_t steps, bool accumulate) {
  float* const lower = c + 16 * c_row / int64_t{sizeof(float)};
  if (accumulate) {
    _tile_loadd(0, c, c_row);
    _tile_loadd(1, lower, c_row);
  } else {
    _tile_zero(0);
    _tile_zero(1);
  }
  for (int64_t step = 0; step < steps; ++step, a += a_order.step, b += b_order.step) {
    _tile_loadd(3, b, b_order.row);
    _tile_loadd(2, a, a_order.row);
    _tile_dpbf16ps(0, 2, 3);
    _tile_loadd(2, a + 16 * a_order.row, a_order.row);
    _tile_dpbf16ps(1, 2, 3);
  }
  _tile_stored(0, c, c_row);
  _tile_stored(1, lower, c_row);
}

SHARDRUN_AMX void multiply_tiles(float* c, int64_t ldc, const Bf16* a, int64_t lda, const uint32_t* b,
                                 int64_t ldb, int64_t rows, int64_t inner, int64_t columns, bool accumulate) {
  const TileOrder a_order{lda * int64_t{sizeof(Bf16)}, kTile * int64_t{sizeof(Bf16)}};
  const TileOrder b_order{ldb * int64_t{sizeof(uint32_t)}, kTile / 2 * ldb * int64_t{sizeof(uint32_t)}};
  write_before_tiles_read();
  for (int64_t n = 0; n < columns; n += kTileColumns) {
    for (int64_t m = 0; m < rows; m += kTile)
      multiply_two(c + m * ldc + n, ldc * int64_t{sizeof(float)},
                   reinterpret_cast<const std::byte*>(a + m * lda), a_order,
                   reinterpret_cast<const std::byte*>(b + n), b_order, inner / kTile, accumulate);
  }
}

SHARDRUN_AMX void multiply_strip_tiles(float* c, const uint32_t* strip, const uint32_t* group, int64_t steps,
                                       bool accumulate) {
  constexpr int64_t kRow = 64;
  write_before_tiles_read();
  multiply_two(c, kRow, reinterpret_cast<const std::byte*>(strip), {kRow, kTile * kRow},
               reinterpret_cast<const std::byte*>(group), {kRow, 16 * kRow}, steps, accumulate);
}

#endif

}  // namespace

#if defined(__x86_64__)

TileSession::TileSession() {
  if (unit() == Unit::kAmx) load_tile_shapes();
}
TileSession::~TileSession() {
  if (unit() == Unit::kAmx) release_tiles();
}

SHARDRUN_BF16 void transpose_words(uint32_t* out, int64_t out_stride, const uint32_t* in, int64_t in_stride,
                                   int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; r += kLanes) {
    for (int64_t c = 0; c < columns; c += kLanes)
      transpose_block(out + c * out_stride + r, out_stride, in + r * in_stride + c, in_stride);
  }
}

void pack(uint32_t* out, const Bf16* b, int64_t rows, int64_t columns, int64_t stride) {
  interleave(out, b, rows, columns, stride);
}
void pack_transposed(uint32_t* out, const Bf16* b, int64_t rows, int64_t columns, int64_t stride) {
  transpose_words(out, rows, words_of(b), stride / 2, rows, columns / 2);
}
void transpose(Bf16* out, int64_t ld, uint32_t* words, const Bf16* b, int64_t rows, int64_t columns,
               int64_t stride) {
  pack_transposed(words, b, rows, columns, stride);
  take_apart(out, ld, words, columns / 2, rows);
}
void transpose(float* out, const float* x, int64_t rows, int64_t columns) {
  transpose_words(reinterpret_cast<uint32_t*>(out), rows, reinterpret_cast<const uint32_t*>(x), columns, rows,
                  columns);
}

void multiply(float* c, int64_t ldc, const Bf16* a, int64_t lda, const uint32_t* b, int64_t ldb, int64_t rows,
              int64_t inner, int64_t columns, bool accumulate) {
  SHARDRUN_CHECK(rows % kTile == 0 && inner % kTile == 0 && columns % kTile == 0);
  if (unit() == Unit::kAmx) return multiply_tiles(c, ldc, a, lda, b, ldb, rows, inner, columns, accumulate);
  multiply_dots(c, ldc, a, lda, b, ldb, rows, inner, columns, accumulate);
}

void multiply_strip(float* c, const uint32_t* strip, const uint32_t* group, int64_t steps, bool accumulate) {
  if (unit() == Unit::kAmx) return multiply_strip_tiles(c, strip, group, steps, accumulate);
  multiply_strip_dots(c, strip, group, steps, accumulate);
}

Unit unit_of(bool has_amx, bool has_bf16) {
  if (has_amx && ask_for_tiles()) return Unit::kAmx;
  return has_bf16 ? Unit::kAvx512Bf16 : Unit::kNone;
}

#else

TileSession::TileSession() = default;
TileSession::~TileSession() = default;
void multiply(float*, int64_t, const Bf16*, int64_t, const uint32_t*, int64_t, int64_t, int64_t, int64_t,
              bool) {
  SHARDRUN_CHECK(false);
}
void multiply_strip(float*, const uint32_t*, const uint32_t*, int64_t, bool) {
  SHARDRUN_CHECK(false);
}
void transpose_words(uint32_t*, int64_t, const uint32_t*, int64_t, int64_t, int64_t) {}
void pack(uint32_t*, const Bf16*, int64_t, int64_t, int64_t) {}
void pack_transposed(uint32_t*, const Bf16*, int64_t, int64_t, int64_t) {}
void transpose(Bf16*, int64_t, uint32_t*, const Bf16*, int64_t, int64_t, int64_t) {}
void transpose(float*, const float*, int64_t, int64_t) {}
Unit unit_of(bool, bool) {
  return Unit::kNone;
}

#endif

}  // namespace shardrun::kernels::tiles
