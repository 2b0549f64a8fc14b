#include "runtime/trainer/kernels/cpu/tiled_products.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/memory.h"
#include "runtime/base/result.h"
#include "runtime/trainer/kernels/cpu/parallel.h"
#include "runtime/trainer/kernels/cpu/tile_products.h"

#if defined(__x86_64__)
#include "runtime/trainer/kernels/cpu/packed_parts.h"
#endif

namespace shardrun::kernels::packed {

using plan::Product;
using plan::TiledScratch;

#if defined(__x86_64__)
namespace {

constexpr int64_t kRows = plan::kStripRows, kGroup = plan::kGroupColumns, kStrip = plan::kStripWords;
constexpr int64_t kStep = 16, kLineWords = 16;  // words of a row of a tile, and of a cache line

// Sixteen elements of two rows in pairs: from the first of each, and from the seventeenth.
struct Pairs {
  __m512i first, second;
};
SHARDRUN_BF16 inline Pairs pairs_of(__m512i row, __m512i behind) {
  const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7,
                                       38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i high = _mm512_set_epi16(63, 31, 62, 30, 61, 29, 60, 28, 59, 27, 58, 26, 57, 25, 56, 24, 55,
                                        23, 54, 22, 53, 21, 52, 20, 51, 19, 50, 18, 49, 17, 48, 16);
  return {_mm512_permutex2var_epi16(row, low, behind), _mm512_permutex2var_epi16(row, high, behind)};
}
// Loads up to 32 elements, and zeros for those that are missing.
SHARDRUN_BF16 inline __m512i load_some(const Bf16* from, int64_t count) {
  const __mmask32 mask = count >= 32 ? ~__mmask32{0} : (__mmask32{1} << count) - 1;
  return _mm512_maskz_loadu_epi16(mask, from);
}

// Packs columns [n, n + columns) of b, of depth [p, p + words): groups of sixteen follow each other, and words of a depth in one.
SHARDRUN_BF16 void pack_columns(uint32_t* out, const Bf16* b, const Product& s, int64_t n, int64_t columns,
                                int64_t p, int64_t words) {
  if (s.b_transposed) {
    for (int64_t g = 0; g < columns; g += kGroup)
      tiles::pack_transposed(out + g * words, b + (n + g) * s.K + 2 * p, kGroup, 2 * words, s.K);
    return;
  }
  constexpr int64_t kAhead = 8;  // pairs of rows that are asked for
  for (int64_t w = 0; w < words; ++w) {
    const Bf16 *const row = b + 2 * (p + w) * s.N + n, *const behind = row + s.N;
    for (int64_t c = 0; c < columns; c += 2 * kGroup) {
      if (w + kAhead < words) {
        __builtin_prefetch(row + 2 * kAhead * s.N + c);
        __builtin_prefetch(behind + 2 * kAhead * s.N + c);
      }
      const Pairs pairs = pairs_of(load_some(row + c, columns - c), load_some(behind + c, columns - c));
      _mm512_store_si512(out + c * words + w * kGroup, pairs.first);
      if (c + kGroup < columns) _mm512_store_si512(out + (c + kGroup) * words + w * kGroup, pairs.second);
    }
  }
}

// Packs rows [m, m + rows) of a, which lies transposed, strip by strip and step by step.
SHARDRUN_BF16 void pack_rows(uint32_t* out, const Bf16* a, const Product& s, int64_t m, int64_t rows) {
  const int64_t words = s.K / 2;
  alignas(64) uint32_t pairs[kStep * kRows];
  for (int64_t w = 0; w < words; w += kStep) {
    for (int64_t r = 0; r < rows; r += kRows) {
      for (int64_t i = 0; i < kStep; ++i) {
        const Bf16* const row = a + 2 * (w + i) * s.M + m + r;
        const Pairs both = pairs_of(load_some(row, rows - r), load_some(row + s.M, rows - r));
        _mm512_store_si512(pairs + i * kRows, both.first);
        _mm512_store_si512(pairs + i * kRows + kLanes, both.second);
      }
      tiles::transpose_words(out + r * words + w * kRows, kStep, pairs, kRows, kStep, kRows);
    }
  }
}

// Copies a piece of a strip of `rows` rows, `stride` words apart, step by step, and fills it up with zeros.
SHARDRUN_BF16 void copy_strip(uint32_t* out, const uint32_t* from, int64_t stride, int64_t rows,
                              int64_t words) {
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t w = 0; w < words; w += kStep)
      _mm512_store_si512(out + w * kRows + r * kStep,
                         r < rows ? _mm512_loadu_si512(from + r * stride + w) : __m512i());
  }
}

// What a thread multiplies: rows [m, m + rows) of a against columns [n_begin, n_end) of b.
template <typename C>
class TiledBlock {
 public:
  TiledBlock(C* c, const Bf16* a, const Bf16* b, const Bf16* bias, const Product& product,
             const TiledScratch& scratch)
      : c_(c), a_(a), b_(b), bias_(bias), s_(product), scratch_(scratch), streams_(streams(c, product)) {}

  void multiply(int64_t m, int64_t rows, int64_t n_begin, int64_t n_end) const {
    if (s_.a_transposed) pack_rows(scratch_.rows, a_, s_, m, rows);
    const int64_t groups = (n_end - n_begin) / kGroup;
    const int64_t panels = (groups * kGroup + scratch_.panel_columns - 1) / scratch_.panel_columns;
    for (int64_t i = 0; i < panels; ++i) {
      const int64_t n = n_begin + groups * i / panels * kGroup;
      const int64_t columns = n_begin + groups * (i + 1) / panels * kGroup - n;
      for (int64_t p = 0; p < scratch_.words; p += scratch_.panel_words) {
        const Panel panel{n, columns, p, std::min(scratch_.panel_words, scratch_.words - p)};
        for (int64_t w = 0; w < panel.words; w += kStrip)
          pack_columns(scratch_.panel + w * columns, b_, s_, n, columns, p + w,
                       std::min(kStrip, panel.words - w));
        for (int64_t r = 0; r < rows; r += kRows) multiply_strip(m, r, std::min(kRows, rows - r), panel);
      }
    }
    if (streams_) _mm_sfence();
  }

 private:
  // Columns [n, n + columns) of depth [p, p + words).
  struct Panel {
    int64_t n, columns, p, words;
  };

  void multiply_strip(int64_t m, int64_t r, int64_t rows, const Panel& panel) const {
    const int64_t all = scratch_.words, end = panel.p + panel.words;
    float* const sums = scratch_.sums + (scratch_.panel_words < all ? r * scratch_.panel_columns : 0);
    C* const to = c_ + (m + r) * s_.N + panel.n;
    for (int64_t p = panel.p; p < end; p += kStrip) {
      const int64_t words = std::min(kStrip, end - p);
      const uint32_t* const strip = strip_of(m, r, rows, p, words);
      const uint32_t* const columns = scratch_.panel + (p - panel.p) * panel.columns;
      for (int64_t g = 0; g < panel.columns; g += kGroup) {
        prefetch_rows(m, r, p, words, g / kGroup, panel.columns / kGroup);
        if (p + words == all && !streams_ && g % (2 * kGroup) == 0)
          prefetch_results(to + g, rows, std::min(2 * kGroup, panel.columns - g), s_.N);
        tiles::multiply_strip(sums + g * kRows, strip, columns + g * words, words / kStep, p > 0);
      }
    }
    if (end == all) finish_strip(to, sums, rows, panel);
  }

  // Returns depth [p, p + words) of the strip from row m + r on: as it was packed, or a copy.
  const uint32_t* strip_of(int64_t m, int64_t r, int64_t rows, int64_t p, int64_t words) const {
    if (s_.a_transposed) return scratch_.rows + r * scratch_.words + p * kRows;
    copy_strip(scratch_.rows, words_of(a_ + (m + r) * s_.K) + p, scratch_.words, rows, words);
    return scratch_.rows;
  }

  // Asks for one of so many parts of what is copied a strip later.
  void prefetch_rows(int64_t m, int64_t r, int64_t p, int64_t words, int64_t part, int64_t parts) const {
    if (s_.a_transposed) return;
    for (int64_t i = kRows * part / parts; i < kRows * (part + 1) / parts; ++i) {
      const int64_t row = std::min(m + r + kRows + i, s_.M - 1);
      for (int64_t w = 0; w < words; w += kLineWords)
        __builtin_prefetch(words_of(a_ + row * s_.K) + p + w, /*for writing=*/0, 2);
    }
  }

  SHARDRUN_BF16 void finish_strip(C* to, const float* sums, int64_t rows, const Panel& panel) const {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t g = 0; g < panel.columns; g += kGroup) {
        const __m512 sum = _mm512_load_ps(sums + g * kRows + r * kGroup);
        C* const at = to + r * s_.N + g;
        if constexpr (std::is_same_v<C, float>) {
          if (streams_) {
            _mm512_stream_ps(at, sum);
            continue;
          }
        }
        finish(at, sum, bias_ == nullptr ? nullptr : bias_ + panel.n + g, s_.accumulate);
      }
    }
  }

  C* c_;
  const Bf16 *a_, *b_, *bias_;
  const Product& s_;
  const TiledScratch& scratch_;
  bool streams_;
};

}  // namespace

template <typename C>
void multiply_tiled(C* c, const Bf16* a, const Bf16* b, const Bf16* bias, const Product& s,
                    std::byte* scratch, int threads) {
  const int64_t bytes = plan::tiled_bytes(s, 1);
  const bool columns = divides_columns(s, threads);
  const int64_t unit = columns ? kGroup : kRows, units = ((columns ? s.N : s.M) + unit - 1) / unit;
  parallel_for(threads, 1, [&](int64_t begin, int64_t end) {
    const tiles::TileSession session;
    for (int64_t thread = begin; thread < end; ++thread) {
      base::Cursor pieces(scratch + thread * bytes);
      const TiledScratch own(pieces, s);
      const TiledBlock<C> block(c, a, b, bias, s, own);
      const int64_t from = units * thread / threads * unit, to = units * (thread + 1) / threads * unit;
      const int64_t m_end = columns ? s.M : std::min(to, s.M);
      for (int64_t m = columns ? 0 : from; m < m_end; m += own.block_rows)
        block.multiply(m, std::min(own.block_rows, m_end - m), columns ? from : 0, columns ? to : s.N);
    }
  });
}

#else

template <typename C>
void multiply_tiled(C*, const Bf16*, const Bf16*, const Bf16*, const Product&, std::byte*, int) {
  SHARDRUN_CHECK(false);
}

#endif

template void multiply_tiled(float*, const Bf16*, const Bf16*, const Bf16*, const Product&, std::byte*, int);
template void multiply_tiled(Bf16*, const Bf16*, const Bf16*, const Bf16*, const Product&, std::byte*, int);

}  // namespace shardrun::kernels::packed
