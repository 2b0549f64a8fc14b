// Sixteen queries at a time: what belongs to them stays in registers while their keys pass, two by two.
#include "runtime/trainer/kernels/cpu/attention_softmax.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "runtime/base/result.h"
#include "runtime/plan/attention_scratch.h"

namespace shardrun::kernels::tiles {

#if defined(__x86_64__)
namespace {

#define SHARDRUN_BF16 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))

using plan::kScores;

constexpr int64_t kLanes = 16;
constexpr __mmask16 kAll = 0xffff;  // the plain forms' unused operand is uninitialized to g++ 12
constexpr float kLog2E = 1.44269504088896341f;

// Computes 2^t where `seen`, and 0 elsewhere: 2^t = 2^n·(1 + f·q(f)) with |f| <= 1/2 and q the polynomial of degree 4 whose
// largest relative error is least, 9e-8.
SHARDRUN_BF16 inline __m512 power_of_2(__m512 t, __mmask16 seen) {
  const __m512 n = _mm512_maskz_roundscale_ps(kAll, t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 f = _mm512_sub_ps(t, n);
  __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(0.0013264727167f), f, _mm512_set1_ps(0.00967151264187f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.0555073374335f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.240222420853f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.693146977599f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  return _mm512_maskz_scalef_ps(seen, p, n);
}

// Which of sixteen queries see a key of the tile. kEvery: all of them see every key.
template <bool kEvery>
struct Seers {
  SHARDRUN_BF16 Seers(const SeenKeys& seen, int64_t c) {
    const __m512i first = _mm512_set1_epi32(static_cast<int32_t>(seen.first_key));
    begin = _mm512_sub_epi32(_mm512_loadu_si512(seen.begin + c), first);
    end = _mm512_sub_epi32(_mm512_loadu_si512(seen.end + c), first);
  }
  SHARDRUN_BF16 __mmask16 of(int64_t key) const {
    if constexpr (kEvery) return kAll;
    const __m512i at = _mm512_set1_epi32(static_cast<int32_t>(key));
    return _mm512_mask_cmpgt_epi32_mask(_mm512_cmple_epi32_mask(begin, at), end, at);
  }
  __m512i begin, end;
};

bool all_see_every_key(const SeenKeys& seen) {
  bool all = true;
  for (int64_t c = 0; c < kScores; ++c)
    all = (seen.begin[c] <= seen.first_key) & (seen.end[c] >= seen.first_key + kScores) & all;
  return all;
}

// Rounds sixteen numbers of a row to the lower half, those of the next row to the upper.
SHARDRUN_BF16 inline __m512i rounded(__m512 row, __m512 next) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(next, row));
}
// The same numbers in pairs: a word has one of the row in its low half and that of the next row in its high half.
SHARDRUN_BF16 inline __m512i paired(__m512i both) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7,
                                         22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_maskz_permutexvar_epi16(~__mmask32{0}, order, both);
}

template <bool kEvery>
SHARDRUN_BF16 void fold_columns(uint32_t* p, const float* scores, const RunningSoftmax& running,
                                const SeenKeys& seen, int64_t D, float scale, int64_t c) {
  const Seers<kEvery> seers(seen, c);
  const __m512 before = _mm512_load_ps(running.largest + c), factor = _mm512_set1_ps(scale * kLog2E);
  const auto larger = [&](__m512 than, int64_t r) SHARDRUN_BF16 {
    return _mm512_mask_max_ps(than, seers.of(r), than, _mm512_load_ps(scores + r * kScores + c));
  };
  __m512 even = before, odd = before;  // rows; two chains of maxima take half the time of one
  for (int64_t r = 0; r < kScores; r += 2) even = larger(even, r), odd = larger(odd, r + 1);
  const __m512 largest = _mm512_maskz_max_ps(kAll, even, odd);
  _mm512_store_ps(running.largest + c, largest);
  // Held above what no float is 2 to the power of: the first keys find the least of floats.
  const __m512 fall = _mm512_maskz_max_ps(kAll, _mm512_mul_ps(_mm512_sub_ps(before, largest), factor),
                                          _mm512_set1_ps(-256.0f));
  const __m512 correction = power_of_2(fall, kAll);
  const __m512 shift = _mm512_mul_ps(largest, factor);
  __m512 sum = _mm512_mul_ps(_mm512_load_ps(running.sum + c), correction);
  const auto probability = [&](int64_t r) SHARDRUN_BF16 {
    return power_of_2(_mm512_fmsub_ps(_mm512_load_ps(scores + r * kScores + c), factor, shift), seers.of(r));
  };
  for (int64_t r = 0; r < kScores; r += 2) {
    const __m512 low = probability(r), high = probability(r + 1);
    sum = _mm512_add_ps(_mm512_add_ps(sum, low), high);
    _mm512_store_si512(p + r / 2 * kScores + c, paired(rounded(low, high)));
  }
  _mm512_store_ps(running.sum + c, sum);
  if (_mm512_cmp_ps_mask(before, largest, _CMP_NEQ_OQ) == 0) return;
  for (int64_t d = 0; d < D; ++d) {
    float* const out = running.out + d * kScores + c;
    _mm512_store_ps(out, _mm512_mul_ps(_mm512_load_ps(out), correction));
  }
}

template <bool kEvery>
SHARDRUN_BF16 void gradient_columns(Bf16* p, Bf16* ds, uint32_t* ds_rows, const ScoreTile& tile,
                                    const SeenKeys& seen, float scale, int64_t c) {
  const Seers<kEvery> seers(seen, c);
  const __m512 factor = _mm512_set1_ps(scale * kLog2E), delta = _mm512_load_ps(tile.delta + c);
  const __m512 shift = _mm512_mul_ps(_mm512_load_ps(tile.lse + c), _mm512_set1_ps(kLog2E));
  const auto probability = [&](int64_t r) SHARDRUN_BF16 {
    return power_of_2(_mm512_fmsub_ps(_mm512_load_ps(tile.scores + r * kScores + c), factor, shift),
                      seers.of(r));
  };
  const auto gradient = [&](int64_t r, __m512 of) SHARDRUN_BF16 {
    return _mm512_mul_ps(of, _mm512_sub_ps(_mm512_load_ps(tile.dp + r * kScores + c), delta));
  };
  const auto store_rows = [&](Bf16* to, __m512i both) SHARDRUN_BF16 {
    auto *const row = reinterpret_cast<__m256i*>(to), *const next = reinterpret_cast<__m256i*>(to + kScores);
    _mm256_store_si256(row, _mm512_maskz_extracti64x4_epi64(0xff, both, 0));
    _mm256_store_si256(next, _mm512_maskz_extracti64x4_epi64(0xff, both, 1));
  };
  for (int64_t r = 0; r < kScores; r += 2) {
    const __m512 low = probability(r), high = probability(r + 1);
    const __m512i gradients = rounded(gradient(r, low), gradient(r + 1, high));
    store_rows(p + r * kScores + c, rounded(low, high));
    store_rows(ds + r * kScores + c, gradients);
    _mm512_store_si512(ds_rows + r / 2 * kScores + c, paired(gradients));
  }
}

}  // namespace

void fold_scores(uint32_t* p, const float* scores, const RunningSoftmax& running, const SeenKeys& seen,
                 int64_t D, float scale) {
  const bool every = all_see_every_key(seen);
  for (int64_t c = 0; c < kScores; c += kLanes)
    every ? fold_columns<true>(p, scores, running, seen, D, scale, c)
          : fold_columns<false>(p, scores, running, seen, D, scale, c);
}

void softmax_and_gradient(Bf16* p, Bf16* ds, uint32_t* ds_rows, const ScoreTile& tile, const SeenKeys& seen,
                          float scale) {
  const bool every = all_see_every_key(seen);
  for (int64_t c = 0; c < kScores; c += kLanes)
    every ? gradient_columns<true>(p, ds, ds_rows, tile, seen, scale, c)
          : gradient_columns<false>(p, ds, ds_rows, tile, seen, scale, c);
}

#else

void fold_scores(uint32_t*, const float*, const RunningSoftmax&, const SeenKeys&, int64_t, float) {
  SHARDRUN_CHECK(false);
}
void softmax_and_gradient(Bf16*, Bf16*, uint32_t*, const ScoreTile&, const SeenKeys&, float) {
  SHARDRUN_CHECK(false);
}

#endif

}  // namespace shardrun::kernels::tiles
