// Products of small bf16 matrices with sums in fp32, by the instructions of this machine that multiply pairs of bf16: AMX's
// tiles, or AVX-512's dot products. This header is internal to kernels/cpu.
//
// The second operand of a product is packed: word (p, n) holds its elements (2p, n) and (2p+1, n), the former in the low half,
// which is the order that both kinds of instructions read. Every size is a multiple of kTile; callers fill up with zeros.
//
// An element is a sum in ascending order of `inner`, so that a machine gives the same bits for any number of threads; AMX and
// AVX-512 round differently.
//
// Thread rule: pure functions on the caller's memory; a TileSession is of the thread that made it.
#pragma once

#include <cstdint>

#include "runtime/trainer/kernels/types.h"

namespace shardrun::kernels::tiles {

inline constexpr int64_t kTile = 32, kTileColumns = 16;

enum class Unit { kNone, kAvx512Bf16, kAmx };
// Returns what this machine has and oneDNN may use (ONEDNN_MAX_CPU_ISA lowers both). Defined where oneDNN is, in gemm.cpp.
Unit unit();
// Returns the unit of a machine that has these; Linux must allow AMX, which is asked for here.
Unit unit_of(bool has_amx, bool has_bf16);

// While one lives, its thread may call multiply(): AMX's tiles have their shapes.
class TileSession {
 public:
  TileSession();
  ~TileSession();
  TileSession(const TileSession&) = delete;
  TileSession& operator=(const TileSession&) = delete;
};

// Computes c (rows, columns; ldc) = a (rows, inner; lda) · b (inner / 2, columns; ldb words), or adds it to c. unit() is not kNone.
void multiply(float* c, int64_t ldc, const Bf16* a, int64_t lda, const uint32_t* b, int64_t ldb, int64_t rows,
              int64_t inner, int64_t columns, bool accumulate);

// Computes c (kTile, kTileColumns) = strip · group, or adds it: both lie as tiles read them, step by step: 32 rows of sixteen words of
// the first operand, and sixteen of the second. unit() is not kNone.
void multiply_strip(float* c, const uint32_t* strip, const uint32_t* group, int64_t steps, bool accumulate);

// Transposes rows × columns words, both multiples of 16, to rows that are out_stride apart. unit() is kAvx512Bf16 or more.
void transpose_words(uint32_t* out, int64_t out_stride, const uint32_t* in, int64_t in_stride, int64_t rows,
                     int64_t columns);
// Packs b (rows, columns; `stride` elements between rows) as a second operand with `columns` words a row.
void pack(uint32_t* out, const Bf16* b, int64_t rows, int64_t columns, int64_t stride);
// Packs the transposed of b (rows, columns; stride) as a second operand: columns / 2 rows of `rows` words.
void pack_transposed(uint32_t* out, const Bf16* b, int64_t rows, int64_t columns, int64_t stride);
// Writes b (rows, columns; stride) transposed to rows that are ld apart; `words` holds rows · columns / 2 in between.
void transpose(Bf16* out, int64_t ld, uint32_t* words, const Bf16* b, int64_t rows, int64_t columns,
               int64_t stride);
// Writes x (rows, columns) transposed to out (columns, rows).
void transpose(float* out, const float* x, int64_t rows, int64_t columns);

}  // namespace shardrun::kernels::tiles
