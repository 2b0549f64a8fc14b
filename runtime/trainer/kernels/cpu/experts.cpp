#include "runtime/trainer/kernels/experts.h"

#include <algorithm>
#include <vector>

#include "runtime/trainer/kernels/cpu/parallel.h"
#include "runtime/trainer/kernels/cpu/vector.h"

namespace shardrun::kernels {
namespace {

constexpr int64_t kFewTokens = 64, kFewRows = 16;  // worth a thread

// The k largest of p (E) in falling order. One of equal ones is the first.
void choose(int32_t* chosen, const float* p, int64_t E, int64_t k) {
  for (int64_t j = 0; j < k; ++j) {
    int32_t best = -1;
    for (int64_t e = 0; e < E; ++e) {
      const auto expert = static_cast<int32_t>(e);
      if (best >= 0 && !(p[e] > p[best])) continue;
      if (std::find(chosen, chosen + j, expert) == chosen + j) best = expert;
    }
    chosen[j] = best;
  }
}

float chosen_sum(const float* p, const int32_t* chosen, int64_t k) {
  float sum = 0.0F;
  for (int64_t j = 0; j < k; ++j) sum += p[chosen[j]];
  return sum;
}

}  // namespace

void route(float* logits, int32_t* chosen, float* weights, const RouterShape& s) {
  parallel_for(s.N, kFewTokens, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      float* const p = logits + n * s.E;
      const float sum = vector::exp_shifted(p, p, vector::maximum(p, s.E), s.E);
      vector::scale(p, 1.0F / sum, s.E);
      int32_t* const experts = chosen + n * s.k;
      choose(experts, p, s.E, s.k);
      const float share = s.normalize ? 1.0F / chosen_sum(p, experts, s.k) : 1.0F;
      for (int64_t j = 0; j < s.k; ++j) weights[n * s.k + j] = p[experts[j]] * share;
    }
  });
}

template <typename T>
void route_backward(T* dlogits, const float* dweights, const float* probabilities, const int32_t* chosen,
                    const RouterShape& s, const BalanceGradient& balance) {
  parallel_for(s.N, kFewTokens, [&](int64_t begin, int64_t end) {
    std::vector<float> dp(s.E), scratch(s.E);
    for (int64_t n = begin; n < end; ++n) {
      const float* const p = probabilities + n * s.E;
      const int32_t* const experts = chosen + n * s.k;
      const float* const dw = dweights + n * s.k;
      const bool counts = balance.of_expert != nullptr && balance.counts[n / balance.sequence_length] != 0;
      if (counts) {
        std::copy_n(balance.of_expert, s.E, dp.data());
      } else {
        std::fill(dp.begin(), dp.end(), 0.0F);
      }
      // With w = p / Σp of the chosen, dp = (dw - Σ dw·w) / Σp.
      const float sum = s.normalize ? chosen_sum(p, experts, s.k) : 1.0F;
      float mean = 0.0F;
      for (int64_t j = 0; j < s.k && s.normalize; ++j) mean += dw[j] * (p[experts[j]] / sum);
      for (int64_t j = 0; j < s.k; ++j) dp[experts[j]] += (dw[j] - mean) / sum;
      const float inner = vector::dot(dp.data(), p, s.E);
      float* const out = vector::target(dlogits + n * s.E, scratch.data());
      for (int64_t e = 0; e < s.E; ++e) out[e] = p[e] * (dp[e] - inner);
      vector::store(dlogits + n * s.E, out, s.E);
    }
  });
}

template <typename T>
void gather_rows(T* y, const int32_t* sources, const T* x, int64_t rows, int64_t C, int64_t divisor) {
  parallel_for(rows, kFewRows, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      if (sources[r] < 0) {
        std::fill_n(y + r * C, C, T{});
      } else {
        std::copy_n(x + sources[r] / divisor * C, C, y + r * C);
      }
    }
  });
}

template <typename T>
void combine_rows(T* y, const int32_t* places, const float* weights, const T* x, int64_t N, int64_t k,
                  int64_t C) {
  parallel_for(N, kFewRows, [&](int64_t begin, int64_t end) {
    std::vector<float> sum(C), wide(C);
    for (int64_t n = begin; n < end; ++n) {
      std::fill(sum.begin(), sum.end(), 0.0F);
      for (int64_t a = n * k; a < (n + 1) * k; ++a) {
        const float* const row = vector::load(x + places[a] * C, wide.data(), C);
        vector::add_scaled(sum.data(), weights != nullptr ? weights[a] : 1.0F, row, C);
      }
      std::copy_n(sum.data(), C, vector::target(y + n * C, wide.data()));
      vector::store(y + n * C, wide.data(), C);
    }
  });
}

namespace {

// x *= factor, a row.
template <typename T>
void scale_row(T* x, float factor, int64_t count, float* scratch) {
  const float* const in = vector::load(x, scratch, count);
  float* const out = vector::target(x, scratch);
  if (in != out) std::copy_n(in, count, out);
  vector::scale(out, factor, count);
  vector::store(x, out, count);
}

}  // namespace

template <typename T>
void weigh_rows(float* dweights, T* dactivated, T* dresults, const T* activated, const float* weights,
                const int32_t* sources, int64_t rows, int64_t F, int64_t C) {
  parallel_for(rows, kFewRows, [&](int64_t begin, int64_t end) {
    std::vector<float> one(std::max(F, C)), other(F);
    for (int64_t r = begin; r < end; ++r) {
      const int32_t source = sources[r];
      if (source < 0) continue;
      dweights[source] = vector::dot(vector::load(dactivated + r * F, one.data(), F),
                                     vector::load(activated + r * F, other.data(), F), F);
      scale_row(dactivated + r * F, weights[source], F, one.data());
      scale_row(dresults + r * C, weights[source], C, one.data());
    }
  });
}

#define SHARDRUN_OF_TYPE(T)                                                                          \
  template void route_backward(T*, const float*, const float*, const int32_t*, const RouterShape&,   \
                               const BalanceGradient&);                                              \
  template void gather_rows(T*, const int32_t*, const T*, int64_t, int64_t, int64_t);                \
  template void combine_rows(T*, const int32_t*, const float*, const T*, int64_t, int64_t, int64_t); \
  template void weigh_rows(float*, T*, T*, const T*, const float*, const int32_t*, int64_t, int64_t, int64_t);
SHARDRUN_OF_TYPE(float)
SHARDRUN_OF_TYPE(Bf16)
#undef SHARDRUN_OF_TYPE

}  // namespace shardrun::kernels
