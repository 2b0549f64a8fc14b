// Which tiles of the scores an attention kernel must visit, and which scores of a tile count.
//
// The functions are constexpr, so that the same lines run on a GPU and in unit tests without one. Documents are
// runs of neighbouring tokens, so `begins` never decreases inside a sequence.
//
// Thread rule: pure functions.
// Tests: tests/unit/kernels/cuda_logic_test.cpp, against the reference's rule for single tokens.
#pragma once

#include <cstdint>

namespace shardrun::kernels::cuda {

// One sequence of T tokens: what Visibility of kernels/ops.h says about it.
struct Sight {
  int32_t T;
  int32_t length;         // tokens that are no padding; T without padding
  const int32_t* begins;  // (T) or null
  bool causal;

  constexpr int32_t begin_of(int32_t t) const { return begins == nullptr ? 0 : begins[t]; }
  // Says whether query t sees key u; both may lie behind the end of the sequence, where nothing is seen.
  constexpr bool sees(int32_t t, int32_t u) const {
    return t < T && u < length && (!causal || u <= t) && (begins == nullptr || begins[t] == begins[u]);
  }
};

constexpr int32_t smaller(int32_t a, int32_t b) {
  return a < b ? a : b;
}
constexpr int32_t larger(int32_t a, int32_t b) {
  return a > b ? a : b;
}

enum class Seen { kNothing, kSome, kAll };

// Judges queries [t0, t0+rows) against keys [u0, u0+columns); t0 < T, u0 < T. kNothing and kAll are certain; kSome
// is not. Rows behind T do not turn kAll into kSome: their results are not stored, or their gradients are zero.
constexpr Seen seen(const Sight& sight, int32_t t0, int32_t rows, int32_t u0, int32_t columns) {
  const int32_t t1 = smaller(t0 + rows, sight.T) - 1;
  if (u0 >= sight.length) return Seen::kNothing;
  if (sight.causal && u0 > t1) return Seen::kNothing;
  const int32_t u1 = smaller(u0 + columns, sight.T) - 1;
  if (sight.begins != nullptr) {
    if (sight.begins[t0] > u1) return Seen::kNothing;  // every query's document begins behind the keys
    if (sight.begins[u0] > t1) return Seen::kNothing;
  }
  if (u0 + columns > sight.length) return Seen::kSome;
  if (sight.causal && u1 > t0) return Seen::kSome;
  if (sight.begins != nullptr && sight.begins[smaller(t0, u0)] != sight.begins[larger(t1, u1)])
    return Seen::kSome;
  return Seen::kAll;
}

// The tiles [first, last) of `columns` keys each that queries [t0, t0+rows) can see at all.
struct TileRange {
  int32_t first, last;
};
constexpr TileRange key_tiles(const Sight& sight, int32_t t0, int32_t rows, int32_t columns) {
  const int32_t t1 = smaller(t0 + rows, sight.T) - 1;
  const int32_t end = sight.causal ? smaller(t1 + 1, sight.length) : sight.length;
  return {sight.begin_of(t0) / columns, (end + columns - 1) / columns};
}

// Returns the tiles [first, last) of `rows` queries each that can see keys [u0, u0+columns).
constexpr TileRange query_tiles(const Sight& sight, int32_t u0, int32_t rows) {
  if (u0 >= sight.length) return {0, 0};
  const int32_t begin = sight.causal ? u0 : sight.begin_of(u0);
  return {begin / rows, (sight.T + rows - 1) / rows};
}

}  // namespace shardrun::kernels::cuda
