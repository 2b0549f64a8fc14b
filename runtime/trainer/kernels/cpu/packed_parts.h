// What both kinds of products with packed operands have in common: sixteen results at a time, and how threads share a product.
// This header is internal to kernels/cpu; machines without AVX-512 with bf16 call nothing of it.
//
// Thread rule: pure functions on the caller's memory.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include <immintrin.h>

#include "runtime/plan/model/ops.h"
#include "runtime/plan/packed_scratch.h"
#include "runtime/trainer/kernels/types.h"

#define SHARDRUN_BF16 __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))

namespace shardrun::kernels::packed {

inline constexpr int64_t kLanes = 16;

template <typename T>
const uint32_t* words_of(const T* values) {
  return reinterpret_cast<const uint32_t*>(values);
}

SHARDRUN_BF16 inline __m512 load(const float* from) {
  return _mm512_loadu_ps(from);
}
SHARDRUN_BF16 inline __m512 load(const Bf16* from) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  // Masks that keep all lanes: g++ 12 takes the plain forms' unused operand for an uninitialized one.
  return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(0xffff, _mm512_maskz_cvtepu16_epi32(0xffff, bits), 16));
}
SHARDRUN_BF16 inline void store(float* to, __m512 values) {
  _mm512_storeu_ps(to, values);
}
SHARDRUN_BF16 inline void store(Bf16* to, __m512 values) {
  const __m256bh narrow = _mm512_cvtneps_pbh(values);
  std::memcpy(to, &narrow, sizeof narrow);
}

// Writes sums, with what is added to them.
template <typename C, typename T>
SHARDRUN_BF16 inline void finish(C* to, __m512 sums, const T* bias, bool accumulate) {
  if (bias != nullptr) sums = _mm512_add_ps(sums, load(bias));
  if (accumulate) sums = _mm512_add_ps(sums, load(to));
  store(to, sums);
}

// Asks for elements of c that will be written, long before they are.
template <typename C>
inline void prefetch_results(const C* c, int64_t rows, int64_t columns, int64_t N) {
  constexpr int64_t kLineElements = 64 / int64_t{sizeof(C)};
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t n = 0; n < columns; n += kLineElements) __builtin_prefetch(c + r * N + n, /*for writing=*/1);
  }
}

// Whether a product is a gradient of weights that is not added to, and begins at a cache line, as its rows then do. Nobody reads
// such results before the step's end: they are written past the caches.
template <typename C>
bool streams(const C* c, const plan::Product& s) {
  return std::is_same_v<C, float> && s.a_transposed && !s.accumulate &&
         reinterpret_cast<uintptr_t>(c) % 64 == 0;
}

// Threads share the columns if these divide well into panels, for then none is packed twice; else the rows.
inline bool divides_columns(const plan::Product& s, int threads) {
  constexpr int64_t kColumns = plan::kPackedColumns;
  return !s.a_transposed && (s.N >= 8 * kColumns * threads || s.N % (kColumns * threads) == 0);
}

}  // namespace shardrun::kernels::packed
