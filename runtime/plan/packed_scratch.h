// What products with packed operands (kernels/cpu/packed_products.h) hold on each thread: a panel of columns of the second
// operand, rows of a first one that lies transposed, and sums that wait for the next panel. A word is one element in fp32 and two
// in bf16. Over nullptr it only counts bytes (base::Cursor).
//
// Thread rule: plain values.
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/base/memory.h"
#include "runtime/plan/model/ops.h"

namespace shardrun::plan {

inline constexpr int64_t kPackedRows = 6, kPackedColumns = 64;
inline constexpr int64_t kPackedDepth =
    1024;  // words of a panel, which stays in a second-level cache: 256 KiB
inline constexpr int64_t kPackedBlockRows = 1026;  // that read a panel once it is packed
inline constexpr int64_t kPackedBlockWords =
    384 << 10;  // of packed rows: 1.5 MiB, of which a panel reads each word once

struct PackedScratch {
  PackedScratch(base::Cursor& pieces, const Product& p, DType dtype)
      : words(p.K * size_of(dtype) / int64_t{sizeof(uint32_t)}),
        block_rows(rows_of_block(p, words)),
        panel(pieces.take<uint32_t>(std::min(words, kPackedDepth) * kPackedColumns)),
        rows(p.a_transposed ? pieces.take<uint32_t>(block_rows * words) : nullptr),
        sums(pieces.take<float>((words > kPackedDepth ? block_rows : kPackedRows) * kPackedColumns)) {}

  int64_t words;       // of the whole depth
  int64_t block_rows;  // at most, a multiple of kPackedRows
  uint32_t *panel, *rows;
  float* sums;

 private:
  static int64_t rows_of_block(const Product& p, int64_t words) {
    const int64_t packed = kPackedBlockWords / words / kPackedRows * kPackedRows;
    const int64_t most = p.a_transposed ? std::min(kPackedBlockRows, packed) : kPackedBlockRows;
    return std::min(std::max(most, kPackedRows), (p.M + kPackedRows - 1) / kPackedRows * kPackedRows);
  }
};

inline int64_t packed_bytes(const Product& p, DType dtype, int threads) {
  base::Cursor counted(nullptr);
  (void)PackedScratch(counted, p, dtype);
  return counted.bytes() * threads;
}

// Says whether a product's sizes fill whole registers, and its rows pay for the packing.
constexpr bool can_pack(const Product& p, DType dtype) {
  const int64_t depth = 16 * int64_t{sizeof(uint32_t)} / size_of(dtype);
  return p.M >= 64 && p.N >= kPackedColumns && p.N % 16 == 0 && p.K % depth == 0;
}

}  // namespace shardrun::plan
