// Softmax and cross-entropy, of a whole vocabulary and of slices.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "runtime/trainer/kernels/cpu/ops.h"
#include "runtime/trainer/kernels/cpu/parallel.h"
#include "runtime/trainer/kernels/cpu/vector.h"

namespace shardrun::kernels {
namespace {

constexpr int64_t kSmallestRows = 16, kSmallestSliceRows = 4;  // fewer are not worth a thread

bool is_in_slice(int64_t token, int64_t first, int64_t V) {
  return token >= first && token < first + V;
}

template <typename T>
class CpuClassifier final : public ClassifierOps<T> {
 public:
  void cross_entropy(double* loss_sum, T* dlogits, const float* logits, const int32_t* targets, int64_t N,
                     int64_t V, float loss_scale) const override {
    std::vector<double> losses(N, 0.0);
    parallel_for(N, kSmallestRows, [&](int64_t begin, int64_t end) {
      std::vector<float> wide = std::vector<float>(V);
      for (int64_t n = begin; n < end; ++n) {
        const float* row = logits + n * V;
        float* out = vector::target(dlogits + n * V, wide.data());
        if (targets[n] < 0) {
          std::memset(out, 0, static_cast<size_t>(V) * sizeof(float));
        } else {
          const float target_logit = row[targets[n]];
          const float largest = vector::maximum(row, V);
          const float sum = vector::exp_shifted(out, row, largest, V);
          losses[n] = std::log(static_cast<double>(sum)) + largest - target_logit;
          vector::scale(out, loss_scale / sum, V);
          out[targets[n]] -= loss_scale;
        }
        vector::store(dlogits + n * V, out, V);
      }
    });
    *loss_sum = std::accumulate(losses.begin(), losses.end(), 0.0);
  }

  void slice_stats(float* stats, const float* logits, const int32_t* targets, int64_t N, int64_t V,
                   int64_t first) const override {
    parallel_for(N, kSmallestSliceRows, [&](int64_t begin, int64_t end) {
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

  void cross_entropy_slice(double* loss_sum, T* dlogits, const float* logits, const float* gathered,
                           const int32_t* targets, int64_t N, int64_t V, int64_t first, int ranks,
                           float loss_scale) const override {
    std::vector<double> losses(N, 0.0);
    parallel_for(N, kSmallestSliceRows, [&](int64_t begin, int64_t end) {
      std::vector<float> wide(V);
      for (int64_t n = begin; n < end; ++n) {
        float* out = vector::target(dlogits + n * V, wide.data());
        if (targets[n] < 0) {
          std::fill_n(out, V, 0.0F);
        } else {
          const auto stat = [&](int rank, int which) {
            return gathered[(rank * N + n) * kSliceStats + which];
          };
          float largest = stat(0, 0), target_logit = 0.0F;
          for (int rank = 1; rank < ranks; ++rank) largest = std::max(largest, stat(rank, 0));
          double sum = 0.0;
          for (int rank = 0; rank < ranks; ++rank) {
            sum +=
                static_cast<double>(stat(rank, 1)) * std::exp(static_cast<double>(stat(rank, 0) - largest));
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
    *loss_sum = std::accumulate(losses.begin(), losses.end(), 0.0);
  }
};

}  // namespace

template <typename T>
const ClassifierOps<T>& cpu_classifier() {
  static const CpuClassifier<T> ops;
  return ops;
}
template const ClassifierOps<float>& cpu_classifier();
template const ClassifierOps<Bf16>& cpu_classifier();

}  // namespace shardrun::kernels
