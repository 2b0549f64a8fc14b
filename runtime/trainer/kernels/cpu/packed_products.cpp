#include "runtime/trainer/kernels/cpu/packed_products.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

#include "runtime/base/memory.h"
#include "runtime/base/result.h"
#include "runtime/trainer/kernels/cpu/parallel.h"
#include "runtime/trainer/kernels/cpu/tile_products.h"

#if defined(__x86_64__)
#include "runtime/trainer/kernels/cpu/packed_parts.h"
#endif

namespace shardrun::kernels::packed {

using plan::PackedScratch;
using plan::Product;

#if defined(__x86_64__)
namespace {

constexpr int64_t kRows = plan::kPackedRows, kColumns = plan::kPackedColumns, kDepth = plan::kPackedDepth;
constexpr int64_t kVectors = kColumns / kLanes;  // with kRows, 24 of 32 registers are sums
constexpr int64_t kSixes = 32;                   // of rows that are packed at a time

template <typename T>
constexpr int64_t kElements = int64_t{sizeof(uint32_t) / sizeof(T)};  // of a word

// Writes `count` words: elements of a row, and of the row behind it where a word has two.
SHARDRUN_BF16 inline void make_words(uint32_t* __restrict out, const float* row, int64_t /*stride*/,
                                     int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = std::bit_cast<uint32_t>(row[i]);
}
SHARDRUN_BF16 inline void make_words(uint32_t* __restrict out, const Bf16* row, int64_t stride,
                                     int64_t count) {
  const Bf16* behind = row + stride;
  for (int64_t i = 0; i < count; ++i)
    out[i] = static_cast<uint32_t>(row[i].bits) | static_cast<uint32_t>(behind[i].bits) << 16;
}

template <typename T>
SHARDRUN_BF16 inline void prefetch_words(const T* row, int64_t stride, int64_t count) {
  constexpr int64_t kLineElements = 64 / int64_t{sizeof(T)};
  for (int64_t each = 0; each < kElements<T>; ++each) {
    for (int64_t i = 0; i < count; i += kLineElements) __builtin_prefetch(row + each * stride + i);
  }
}

// A panel of columns that is packed next: from n on, of depth [p, p + words).
struct Panel {
  int64_t n = 0, p = 0, words = 0;
};

// Asks for one of so many parts of a panel, which comes from memory while the panel before it is multiplied.
template <typename T>
void prefetch_panel(const T* b, const Product& s, const Panel& panel, int64_t part, int64_t parts) {
  constexpr int64_t kEach = kElements<T>, kLineElements = 64 / int64_t{sizeof(T)};
  const int64_t columns = std::min(kColumns, s.N - panel.n), depth = panel.words * kEach;
  const int64_t rows = s.b_transposed ? columns : depth, count = s.b_transposed ? depth : columns;
  const int64_t stride = s.b_transposed ? s.K : s.N;
  const T* const from =
      s.b_transposed ? b + panel.n * s.K + panel.p * kEach : b + panel.p * kEach * s.N + panel.n;
  for (int64_t r = rows * part / parts; r < rows * (part + 1) / parts; ++r) {
    for (int64_t i = 0; i < count; i += kLineElements) __builtin_prefetch(from + r * stride + i, 0, 2);
  }
}

// Packs columns of b from n on, of depth [p, p + words): 64 words of a depth follow each other.
template <typename T>
SHARDRUN_BF16 void pack_columns(uint32_t* out, const T* b, const Product& s, int64_t n, int64_t p,
                                int64_t words) {
  constexpr int64_t kEach = kElements<T>;
  const int64_t columns = std::min(kColumns, s.N - n);
  if (columns < kColumns) std::fill_n(out, words * kColumns, 0U);
  if (s.b_transposed)
    return tiles::transpose_words(out, kColumns, words_of(b + n * s.K + p * kEach), s.K / kEach, columns,
                                  words);
  for (int64_t w = 0; w < words; ++w) {
    const T* const row = b + (p + w) * kEach * s.N + n;
    if (columns == kColumns)
      make_words(out + w * kColumns, row, s.N, kColumns);
    else
      make_words(out + w * kColumns, row, s.N, columns);
  }
}

// Packs rows [m, m + rows) of a, which lies transposed: six words of a depth follow each other.
template <typename T>
SHARDRUN_BF16 void pack_rows(uint32_t* out, const T* a, const Product& s, int64_t m, int64_t rows) {
  constexpr int64_t kEach = kElements<T>, kAtOnce = 8;  // depths; K is a multiple of so many words
  const int64_t words = s.K / kEach;
  uint32_t lines[kAtOnce][kSixes * kRows] = {};
  for (int64_t r = 0; r < rows; r += kSixes * kRows) {
    const int64_t count = std::min(kSixes * kRows, rows - r);
    if (count < kSixes * kRows) std::memset(lines, 0, sizeof lines);
    for (int64_t w = 0; w < words; w += kAtOnce) {
      const T* const row = a + w * kEach * s.M + m + r;
      for (int64_t i = 0; i < kAtOnce; ++i) {
        if (w + kAtOnce < words) prefetch_words(row + (kAtOnce + i) * kEach * s.M, s.M, count);
        make_words(lines[i], row + i * kEach * s.M, s.M, count);
      }
      for (int64_t six = 0; six < count; six += kRows) {
        uint32_t* const to = out + (r + six) * words + w * kRows;
        for (int64_t i = 0; i < kAtOnce; ++i)
          std::memcpy(to + i * kRows, lines[i] + six, kRows * sizeof(uint32_t));
      }
    }
  }
}

template <typename T>
SHARDRUN_BF16 inline __m512 multiplied(__m512 sum, uint32_t a, __m512i b) {
  if constexpr (kElements<T> == 1)
    return _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int32_t>(a))),
                           _mm512_castsi512_ps(b), sum);
  else
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int32_t>(a))),
                            reinterpret_cast<__m512bh>(b));
}

// Adds up 6 × 64 sums over `words`. The registers are addressed by constants: see small_products.cpp. kPacked: the words of
// six rows follow each other, else each row has its own pointer, so that the last rows may be named several times.
template <typename T, bool kPacked, size_t... I>
SHARDRUN_BF16 inline void add_products(float* sums, const uint32_t* const (&rows)[kRows],
                                       const uint32_t* panel, int64_t words, bool adds,
                                       std::index_sequence<I...>) {
  __m512 s[sizeof...(I)] = {(adds ? _mm512_load_ps(sums + I * kLanes) : _mm512_setzero_ps())...};
  const uint32_t *r0 = rows[0], *r1 = rows[1], *r2 = rows[2], *r3 = rows[3], *r4 = rows[4], *r5 = rows[5];
  for (int64_t w = 0; w < words; ++w) {
    const uint32_t* const y = panel + w * kColumns;
    const __m512i b[kVectors] = {_mm512_load_si512(y), _mm512_load_si512(y + kLanes),
                                 _mm512_load_si512(y + 2 * kLanes), _mm512_load_si512(y + 3 * kLanes)};
    const uint32_t* const six = r0 + w * kRows;
    const uint32_t a[kRows] = {kPacked ? six[0] : r0[w], kPacked ? six[1] : r1[w], kPacked ? six[2] : r2[w],
                               kPacked ? six[3] : r3[w], kPacked ? six[4] : r4[w], kPacked ? six[5] : r5[w]};
    ((s[I] = multiplied<T>(s[I], a[I / kVectors], b[I % kVectors])), ...);
  }
  (_mm512_store_ps(sums + I * kLanes, s[I]), ...);
}

template <typename T, bool kPacked>
SHARDRUN_BF16 void add_tile(float* sums, const uint32_t* const (&rows)[kRows], const uint32_t* panel,
                            int64_t words, bool adds) {
  add_products<T, kPacked>(sums, rows, panel, words, adds, std::make_index_sequence<kRows * kVectors>());
}

// Writes sums to a gradient of weights, which nobody reads before the step's end, past the caches.
SHARDRUN_BF16 void stream_tile(float* c, const float* sums, int64_t rows, int64_t columns, int64_t N) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t n = 0; n < columns; n += kLanes)
      _mm512_stream_ps(c + r * N + n, _mm512_load_ps(sums + r * kColumns + n));
  }
}

// Writes sums of `rows` × `columns` elements to c, with what is added to them.
template <typename C, typename T>
SHARDRUN_BF16 void finish_tile(C* c, const float* sums, const T* bias, int64_t rows, int64_t columns,
                               int64_t N, bool accumulate) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t n = 0; n < columns; n += kLanes)
      finish(c + r * N + n, _mm512_load_ps(sums + r * kColumns + n), bias == nullptr ? nullptr : bias + n,
             accumulate);
  }
}

// What a thread multiplies: rows [m, m + rows) of a, packed if they lie transposed, against columns [n_begin, n_end) of b.
template <typename C, typename T>
class Block {
 public:
  Block(C* c, const T* a, const T* b, const T* bias, const Product& product, const PackedScratch& scratch)
      : c_(c), a_(a), b_(b), bias_(bias), s_(product), scratch_(scratch), streams_(streams(c, product)) {}

  void multiply(int64_t m, int64_t rows, int64_t n_begin, int64_t n_end) const {
    if (s_.a_transposed) pack_rows(scratch_.rows, a_, s_, m, rows);
    const int64_t all = scratch_.words;
    for (Panel panel{n_begin, 0, std::min(kDepth, all)}; panel.n < n_end;) {
      pack_columns(scratch_.panel, b_, s_, panel.n, panel.p, panel.words);
      const int64_t end = panel.p + panel.words;
      Panel next{panel.n, end, std::min(kDepth, all - end)};
      if (end == all) next = {panel.n + kColumns, 0, panel.n + kColumns < n_end ? std::min(kDepth, all) : 0};
      for (int64_t r = 0; r < rows; r += kRows) {
        prefetch_panel(b_, s_, next, r / kRows, (rows + kRows - 1) / kRows);
        multiply_six(m, r, std::min(kRows, rows - r), panel);
      }
      panel = next;
    }
    if (streams_) _mm_sfence();
  }

 private:
  // The rows from m + r on, of which `rows` count.
  void multiply_six(int64_t m, int64_t r, int64_t rows, const Panel& panel) const {
    const int64_t all = scratch_.words, columns = std::min(kColumns, s_.N - panel.n);
    const bool is_last = panel.p + panel.words == all, adds = panel.p > 0;
    C* const to = c_ + (m + r) * s_.N + panel.n;
    float* const sums = scratch_.sums + (all > kDepth ? r * kColumns : 0);
    if (is_last && !streams_) prefetch_results(to, rows, columns, s_.N);
    const uint32_t* six[kRows];
    if (s_.a_transposed) {
      std::fill_n(six, kRows, scratch_.rows + r * all + panel.p * kRows);
      add_tile<T, true>(sums, six, scratch_.panel, panel.words, adds);
    } else {
      for (int64_t i = 0; i < kRows; ++i)
        six[i] = words_of(a_ + (m + r + std::min(i, rows - 1)) * s_.K) + panel.p;
      add_tile<T, false>(sums, six, scratch_.panel, panel.words, adds);
    }
    if (!is_last) return;
    if constexpr (std::is_same_v<C, float>) {
      if (streams_) return stream_tile(to, sums, rows, columns, s_.N);
    }
    finish_tile(to, sums, bias_ == nullptr ? nullptr : bias_ + panel.n, rows, columns, s_.N, s_.accumulate);
  }

  C* c_;
  const T *a_, *b_, *bias_;
  const Product& s_;
  const PackedScratch& scratch_;
  bool streams_;
};

}  // namespace

template <typename C, typename T>
void multiply(C* c, const T* a, const T* b, const T* bias, const Product& s, std::byte* scratch,
              int threads) {
  const DType dtype = std::is_same_v<T, float> ? DType::kFp32 : DType::kBf16;
  const int64_t bytes = plan::packed_bytes(s, dtype, 1);
  const bool columns = divides_columns(s, threads);
  const int64_t unit = columns ? kColumns : kRows, units = ((columns ? s.N : s.M) + unit - 1) / unit;
  parallel_for(threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t thread = begin; thread < end; ++thread) {
      base::Cursor pieces(scratch + thread * bytes);
      const PackedScratch own(pieces, s, dtype);
      const Block<C, T> block(c, a, b, bias, s, own);
      const int64_t from = units * thread / threads * unit, to = units * (thread + 1) / threads * unit;
      const int64_t m_begin = columns ? 0 : from, m_end = columns ? s.M : std::min(to, s.M);
      const int64_t n_begin = columns ? from : 0, n_end = columns ? std::min(to, s.N) : s.N;
      const int64_t blocks = (m_end - m_begin + own.block_rows - 1) / own.block_rows;
      const int64_t sixes = (m_end - m_begin + kRows - 1) / kRows;
      for (int64_t i = 0; i < blocks; ++i) {
        const int64_t m = m_begin + sixes * i / blocks * kRows;
        const int64_t rows = std::min(m_begin + sixes * (i + 1) / blocks * kRows, m_end) - m;
        block.multiply(m, rows, n_begin, n_end);
      }
    }
  });
}

#else

template <typename C, typename T>
void multiply(C*, const T*, const T*, const T*, const Product&, std::byte*, int) {
  SHARDRUN_CHECK(false);
}

#endif

template void multiply(float*, const float*, const float*, const float*, const Product&, std::byte*, int);
template void multiply(float*, const Bf16*, const Bf16*, const Bf16*, const Product&, std::byte*, int);
template void multiply(Bf16*, const Bf16*, const Bf16*, const Bf16*, const Product&, std::byte*, int);

}  // namespace shardrun::kernels::packed
