// LayerNorm, forward and backward, a row at a time in fp32.
#include <algorithm>
#include <cmath>
#include <vector>

#include "runtime/kernels/cpu/parallel.h"
#include "runtime/kernels/cpu/vector.h"
#include "runtime/kernels/ops.h"

namespace shardrun::kernels {

template <typename T>
void layernorm_forward(T* y, float* mean, float* rstd, T* x, const T* residual, const T* gamma, const T* beta,
                       int64_t N, int64_t C, float epsilon) {
  constexpr int64_t kSmallestRows = 16;
  parallel_for(N, kSmallestRows, [&](int64_t begin, int64_t end) {
    std::vector<float> buffers(static_cast<size_t>(5 * C));
    float *wide = buffers.data(), *wide_residual = wide + C, *result = wide + 2 * C;
    const float* g = vector::load(gamma, wide + 3 * C, C);
    const float* b = vector::load(beta, wide + 4 * C, C);
    for (int64_t n = begin; n < end; ++n) {
      T* row = x + n * C;
      const float* in = vector::load(row, wide, C);
      if (residual != nullptr) {
        float* sum = vector::target(row, wide);
        vector::add(sum, in, vector::load(residual + n * C, wide_residual, C), C);
        vector::store(row, sum, C);
        in = vector::load(row, wide, C);  // as backward will read it
      }
      const auto size = static_cast<float>(C);
      mean[n] = vector::sum(in, C) / size;
      rstd[n] = 1.0f / std::sqrt(vector::sum_of_squared_deviations(in, mean[n], C) / size + epsilon);
      float* out = vector::target(y + n * C, result);
      vector::normalize(out, in, mean[n], rstd[n], g, b, C);
      vector::store(y + n * C, out, C);
    }
  });
}

template <typename T>
void layernorm_backward(T* dx, float* dgamma, float* dbeta, const T* dy, const T* x, const T* gamma,
                        const float* mean, const float* rstd, int64_t N, int64_t C) {
  // Groups of rows, each with its own sums for dgamma and dbeta, which are added in order at the end.
  constexpr int64_t kGroup = 32;
  const int64_t groups = (N + kGroup - 1) / kGroup;
  std::vector<float> sums(static_cast<size_t>(groups * 2 * C));
  parallel_for(groups, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> buffers(static_cast<size_t>(3 * C));
    float *wide_gradient = buffers.data(), *wide_x = wide_gradient + C;
    const float* g = vector::load(gamma, wide_gradient + 2 * C, C);
    for (int64_t n = begin * kGroup; n < std::min(N, end * kGroup); ++n) {
      float* group_sums = sums.data() + n / kGroup * 2 * C;
      const float* in = vector::load(x + n * C, wide_x, C);
      const float* gradient = vector::load(dy + n * C, wide_gradient, C);
      const auto means =
          vector::layernorm_gradient_means(group_sums, group_sums + C, gradient, in, mean[n], rstd[n], g, C);
      float* out = vector::target(dx + n * C, wide_gradient);
      vector::layernorm_gradient(out, gradient, in, mean[n], rstd[n], g, means, C);
      vector::store(dx + n * C, out, C);
    }
  });
  std::fill_n(dgamma, C, 0.0f);
  std::fill_n(dbeta, C, 0.0f);
  for (int64_t group = 0; group < groups; ++group) {
    const float* group_sums = sums.data() + group * 2 * C;
    vector::add(dgamma, dgamma, group_sums, C);
    vector::add(dbeta, dbeta, group_sums + C, C);
  }
}

#define SHARDRUN_INSTANTIATE(T)                                                                           \
  template void layernorm_forward(T*, float*, float*, T*, const T*, const T*, const T*, int64_t, int64_t, \
                                  float);                                                                 \
  template void layernorm_backward(T*, float*, float*, const T*, const T*, const T*, const float*,        \
                                   const float*, int64_t, int64_t);
SHARDRUN_INSTANTIATE(float)
SHARDRUN_INSTANTIATE(Bf16)
#undef SHARDRUN_INSTANTIATE

}  // namespace shardrun::kernels
