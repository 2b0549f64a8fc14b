// What products by tiles (kernels/cpu/tiled_products.h) hold on each thread: a panel of columns of the second operand, the rows
// of the first that are multiplied next, and sums. A word is two bf16. Over nullptr it only counts bytes (base::Cursor).
//
// Thread rule: plain values.
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/base/memory.h"
#include "runtime/plan/model/ops.h"

namespace shardrun::plan {

inline constexpr int64_t kStripRows = 32, kGroupColumns = 16;  // of sums that are in tiles at a time
// Words of a strip of rows that follow each other: 16 KiB, which stay in a first-level cache while all columns pass.
inline constexpr int64_t kStripWords = 128;
// A panel stays in a second-level cache of 2 MiB: 1 MiB at most, or half of it beside packed rows.
inline constexpr int64_t kPanelWords = 1024, kPanelColumns = 256, kMostPanelColumns = 512,
                         kPanelColumnsBesideRows = 128;
inline constexpr int64_t kTiledBlockWords = 512 << 10;  // of packed rows
inline constexpr int64_t kTiledBlockRows = 512;  // whose sums wait where a product is deeper than a panel

struct TiledScratch {
  TiledScratch(base::Cursor& pieces, const Product& p)
      : words(p.K / 2),
        panel_words(std::min(words, whole(parts(words, parts(words, kPanelWords)), kStripWords))),
        panel_columns(std::min(whole(p.N, kGroupColumns), columns_of_panel(p, panel_words))),
        block_rows(rows_of_block(p, words)),
        panel(pieces.take<uint32_t>(panel_words * panel_columns)),
        rows(pieces.take<uint32_t>(p.a_transposed ? block_rows * words : kStripRows * kStripWords)),
        sums(pieces.take<float>((panel_words < words ? block_rows : kStripRows) * panel_columns)) {}

  int64_t words;                       // of the whole depth
  int64_t panel_words, panel_columns;  // at most; whole pieces of a strip, or the whole depth
  int64_t block_rows;                  // at most, a multiple of kStripRows
  uint32_t *panel, *rows;
  float* sums;

 private:
  static constexpr int64_t parts(int64_t count, int64_t most) { return (count + most - 1) / most; }
  static constexpr int64_t whole(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }
  static int64_t columns_of_panel(const Product& p, int64_t words) {
    if (p.a_transposed) return kPanelColumnsBesideRows;
    return std::min(kPanelWords * kPanelColumns / words / kGroupColumns * kGroupColumns, kMostPanelColumns);
  }
  static int64_t rows_of_block(const Product& p, int64_t words) {
    int64_t most = whole(p.M, kStripRows);
    if (p.a_transposed)
      most = std::min(most, std::max(kTiledBlockWords / words / kStripRows * kStripRows, kStripRows));
    return words > kPanelWords ? std::min(most, kTiledBlockRows) : most;
  }
};

// Says whether a product whose sizes fill registers is deep and wide enough to pay for copying rows and for writing sums.
constexpr bool can_tile(const Product& p) {
  return p.a_transposed || (p.K >= 192 && p.N >= 192);
}

inline int64_t tiled_bytes(const Product& p, int threads) {
  base::Cursor counted(nullptr);
  (void)TiledScratch(counted, p);
  return counted.bytes() * threads;
}

}  // namespace shardrun::plan
