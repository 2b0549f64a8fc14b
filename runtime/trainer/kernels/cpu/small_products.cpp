// The small matrix products of attention's tiles (vector.h), with their results in registers.
//
// Registers are addressed by constants from the start, through index sequences: an array that loops index is
// sometimes kept in memory by g++ 12, at a third of the speed, depending on what else the file holds.
#include <utility>

#include "runtime/trainer/kernels/cpu/dispatch.h"

namespace shardrun::kernels::vector {
namespace {
namespace body {

// Returns element (r, k) of a as it is stored.
template <bool kTransposed>
SHARDRUN_INLINE float element(const float* a, int64_t lda, int64_t r, int64_t k) {
  return kTransposed ? a[k * lda + r] : a[r * lda + k];
}

// Computes sizeof...(I) / kVectors rows × kVectors registers of c, which stay in registers while `inner` runs. The
// products of one element of c are added in ascending order of `inner`, whatever the tile.
template <int kWidth, size_t kVectors, bool kTransposed, size_t... I>
SHARDRUN_INLINE void tile(float* c, int64_t ldc, const float* a, int64_t lda, const float* b, int64_t ldb,
                          int64_t inner, std::index_sequence<I...>) {
  // A register of kWidth floats, which may lie anywhere in memory.
  typedef float Lanes __attribute__((vector_size(kWidth * sizeof(float)), aligned(sizeof(float)), may_alias));
  Lanes sums[sizeof...(I)] = {};
  for (int64_t k = 0; k < inner; ++k) {
    const Lanes* y = reinterpret_cast<const Lanes*>(b + k * ldb);
    ((sums[I] += element<kTransposed>(a, lda, I / kVectors, k) * y[I % kVectors]), ...);
  }
  ((reinterpret_cast<Lanes*>(c + I / kVectors * ldc)[I % kVectors] += sums[I]), ...);
}

// Computes kRows rows of c: wide tiles, then one register, then single columns.
template <int kWidth, size_t kRows, bool kTransposed>
SHARDRUN_INLINE void stripe(float* c, int64_t ldc, const float* a, int64_t lda, const float* b, int64_t ldb,
                            int64_t inner, int64_t columns) {
  int64_t j = 0;
  for (; j + 2 * kWidth <= columns; j += 2 * kWidth)
    tile<kWidth, 2, kTransposed>(c + j, ldc, a, lda, b + j, ldb, inner,
                                 std::make_index_sequence<2 * kRows>());
  for (; j + kWidth <= columns; j += kWidth)
    tile<kWidth, 1, kTransposed>(c + j, ldc, a, lda, b + j, ldb, inner, std::make_index_sequence<kRows>());
  for (; j < columns; ++j)
    tile<1, 1, kTransposed>(c + j, ldc, a, lda, b + j, ldb, inner, std::make_index_sequence<kRows>());
}

template <int kWidth, bool kTransposed>
SHARDRUN_INLINE void multiply_add(float* c, int64_t ldc, const float* a, int64_t lda, const float* b,
                                  int64_t ldb, int64_t rows, int64_t inner, int64_t columns) {
  constexpr size_t kRows = 4;
  const int64_t step = kTransposed ? 1 : lda;  // from one row of op(a) to the next
  int64_t row = 0;
  for (; row + int64_t{kRows} <= rows; row += kRows)
    stripe<kWidth, kRows, kTransposed>(c + row * ldc, ldc, a + row * step, lda, b, ldb, inner, columns);
  for (; row < rows; ++row)
    stripe<kWidth, 1, kTransposed>(c + row * ldc, ldc, a + row * step, lda, b, ldb, inner, columns);
}

}  // namespace body
}  // namespace

void multiply_add(float* c, int64_t ldc, const float* a, int64_t lda, const float* b, int64_t ldb,
                  int64_t rows, int64_t inner, int64_t columns) {
  dispatch<body::multiply_add<4, false>, body::multiply_add<8, false>, body::multiply_add<16, false>>(
      c, ldc, a, lda, b, ldb, rows, inner, columns);
}
void multiply_add_transposed(float* c, int64_t ldc, const float* a, int64_t lda, const float* b, int64_t ldb,
                             int64_t rows, int64_t inner, int64_t columns) {
  dispatch<body::multiply_add<4, true>, body::multiply_add<8, true>, body::multiply_add<16, true>>(
      c, ldc, a, lda, b, ldb, rows, inner, columns);
}

}  // namespace shardrun::kernels::vector
