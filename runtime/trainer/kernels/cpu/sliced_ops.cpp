#include "runtime/trainer/kernels/sliced_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "runtime/trainer/kernels/cpu/parallel.h"
#include "runtime/trainer/kernels/cpu/vector.h"
#include "runtime/trainer/kernels/ops.h"

namespace shardrun::kernels {
namespace {

constexpr int64_t kSmallestRows = 4, kSmallestColumns = 16;

bool is_in_slice(int64_t token, int64_t first, int64_t V) {
  return token >= first && token < first + V;
}

}  // namespace

template <typename T>
void from_fp32(T* out, const float* in, int64_t count) {
  if constexpr (std::is_same_v<T, float>) {
    std::memcpy(out, in, static_cast<size_t>(count) * sizeof(float));
  } else {
    fp32_to_bf16(std::span(in, count), std::span(out, count));
  }
}

template <typename T>
void embedding_slice_forward(float* y, const int32_t* tokens, const T* w, int64_t N, int64_t C, int64_t V,
                             int64_t first) {
  parallel_for(N, kSmallestRows, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      float* row = y + n * C;
      if (!is_in_slice(tokens[n], first, V)) {
        std::fill_n(row, C, 0.0F);
      } else if (const T* from = w + (tokens[n] - first) * C; vector::load(from, row, C) != row) {
        std::memcpy(row, from, static_cast<size_t>(C) * sizeof(float));
      }
    }
  });
}

template <typename T>
void embedding_slice_backward(float* dw, const int32_t* tokens, const T* dy, int64_t N, int64_t C, int64_t V,
                              int64_t first, bool accumulate) {
  parallel_for(C, kSmallestColumns, [&](int64_t begin, int64_t end) {
    const int64_t columns = end - begin;
    for (int64_t v = 0; v < V && !accumulate; ++v) std::fill_n(dw + v * C + begin, columns, 0.0F);
    std::vector<float> wide(columns);
    for (int64_t n = 0; n < N; ++n) {
      if (!is_in_slice(tokens[n], first, V)) continue;
      float* row = dw + (tokens[n] - first) * C + begin;
      vector::add(row, row, vector::load(dy + n * C + begin, wide.data(), columns), columns);
    }
  });
}

void classifier_slice_stats(float* stats, const float* logits, const int32_t* targets, int64_t N, int64_t V,
                            int64_t first) {
  parallel_for(N, kSmallestRows, [&](int64_t begin, int64_t end) {
    std::vector<float> exponentials(V);
    for (int64_t n = begin; n < end; ++n) {
      const float* row = logits + n * V;
      float* out = stats + n * kSliceStats;
      out[0] = vector::maximum(row, V);
      out[1] = vector::exp_shifted(exponentials.data(), row, out[0], V);
      out[2] = is_in_slice(targets[n], first, V) ? row[targets[n] - first] : 0.0F;
    }
  });
}

template <typename T>
double cross_entropy_slice(T* dlogits, const float* logits, const float* gathered, const int32_t* targets,
                           int64_t N, int64_t V, int64_t first, int ranks, float loss_scale) {
  std::vector<double> losses(N, 0.0);
  parallel_for(N, kSmallestRows, [&](int64_t begin, int64_t end) {
    std::vector<float> wide(V);
    for (int64_t n = begin; n < end; ++n) {
      float* out = vector::target(dlogits + n * V, wide.data());
      if (targets[n] < 0) {
        std::fill_n(out, V, 0.0F);
      } else {
        const auto stat = [&](int rank, int which) { return gathered[(rank * N + n) * kSliceStats + which]; };
        float largest = stat(0, 0), target_logit = 0.0F;
        for (int rank = 1; rank < ranks; ++rank) largest = std::max(largest, stat(rank, 0));
        double sum = 0.0;
        for (int rank = 0; rank < ranks; ++rank) {
          sum += static_cast<double>(stat(rank, 1)) * std::exp(static_cast<double>(stat(rank, 0) - largest));
          target_logit += stat(rank, 2);
        }
        losses[n] = std::log(sum) + largest - target_logit;
        vector::exp_shifted(out, logits + n * V, largest, V);
        vector::scale(out, static_cast<float>(loss_scale / sum), V);
        if (is_in_slice(targets[n], first, V)) out[targets[n] - first] -= loss_scale;
      }
      vector::store(dlogits + n * V, out, V);
    }
  });
  double total = 0.0;
  for (const double loss : losses) total += loss;
  return total;
}

#define SHARDRUN_INSTANTIATE(T)                                                                         \
  template void from_fp32(T*, const float*, int64_t);                                                   \
  template void embedding_slice_forward(float*, const int32_t*, const T*, int64_t, int64_t, int64_t,    \
                                        int64_t);                                                       \
  template void embedding_slice_backward(float*, const int32_t*, const T*, int64_t, int64_t, int64_t,   \
                                         int64_t, bool);                                                \
  template double cross_entropy_slice(T*, const float*, const float*, const int32_t*, int64_t, int64_t, \
                                      int64_t, int, float);
SHARDRUN_INSTANTIATE(float)
SHARDRUN_INSTANTIATE(Bf16)
#undef SHARDRUN_INSTANTIATE

}  // namespace shardrun::kernels
