// Both norms, forward and backward, a row at a time in fp32.
#include <algorithm>
#include <cmath>
#include <vector>

#include "runtime/trainer/kernels/cpu/ops.h"
#include "runtime/trainer/kernels/cpu/parallel.h"
#include "runtime/trainer/kernels/cpu/vector.h"

namespace shardrun::kernels {
namespace {

constexpr int64_t kSmallestRows = 16;  // fewer are not worth a thread

// Sums over rows of one number for each column, made by threads: groups of rows have their own sums, which are
// added in order, so the bits do not depend on the number of threads.
class ColumnSums {
 public:
  ColumnSums(int64_t N, int64_t columns) : N_(N), columns_(columns), sums_(groups() * columns) {}

  // Runs body(begin, end, sums_of) on all threads, each with its own rows; sums_of(n) is where row n adds its numbers.
  template <typename Body>
  void for_rows(const Body& body) {
    parallel_for(groups(), 1, [&](int64_t begin, int64_t end) {
      body(begin * kGroup, std::min(N_, end * kGroup), [&](int64_t n) { return row(n / kGroup); });
    });
  }
  // Computes out (count) = the sums of columns [first, first + count).
  void add_up(float* out, int64_t first, int64_t count) {
    std::fill_n(out, count, 0.0f);
    for (int64_t group = 0; group < groups(); ++group) vector::add(out, out, row(group) + first, count);
  }

 private:
  static constexpr int64_t kGroup = 32;
  int64_t groups() const { return (N_ + kGroup - 1) / kGroup; }
  float* row(int64_t group) { return sums_.data() + group * columns_; }
  int64_t N_, columns_;
  std::vector<float> sums_;
};

std::vector<float> scratch(int64_t count) {
  return std::vector<float>(count);
}

template <typename T>
class CpuNorms final : public NormOps<T> {
 public:
  void rmsnorm_forward(T* y, float* rrms, const T* x, const T* w, int64_t N, int64_t C,
                       float epsilon) const override {
    parallel_for(N, kSmallestRows, [&](int64_t begin, int64_t end) {
      std::vector<float> buffers = scratch(3 * C);
      const float* weights = vector::load(w, buffers.data(), C);
      for (int64_t n = begin; n < end; ++n) {
        const float* row = vector::load(x + n * C, buffers.data() + C, C);
        rrms[n] = 1.0f / std::sqrt(vector::sum_of_squares(row, C) / static_cast<float>(C) + epsilon);
        float* out = vector::target(y + n * C, buffers.data() + 2 * C);
        vector::scale_by_weights(out, row, rrms[n], weights, C);
        vector::store(y + n * C, out, C);
      }
    });
  }

  void rmsnorm_residual_forward(T* y, float* rrms, T* x, const T* residual, const T* w, int64_t N, int64_t C,
                                float epsilon) const override {
    cpu_pointwise<T>().add(x, residual, x, N * C);
    rmsnorm_forward(y, rrms, x, w, N, C, epsilon);
  }

  // Computes, with r = 1/rms and g = dy·w:  dx += r·g - x·r³·mean(g·x),  dw = Σ_n dy·x·r.
  void rmsnorm_backward(T* dx, float* dw, const T* dy, const T* x, const T* w, const float* rrms, int64_t N,
                        int64_t C) const override {
    ColumnSums sums(N, C);
    sums.for_rows([&](int64_t begin, int64_t end, const auto& sums_of) {
      std::vector<float> buffers = scratch(5 * C);
      float* const product = buffers.data() + 4 * C;
      const float* weights = vector::load(w, buffers.data(), C);
      for (int64_t n = begin; n < end; ++n) {
        const float* in = vector::load(x + n * C, buffers.data() + C, C);
        const float* grad = vector::load(dy + n * C, buffers.data() + 2 * C, C);
        const float r = rrms[n];
        vector::scale_by_weights(product, grad, r, in, C);  // dy·x·r
        vector::add(sums_of(n), sums_of(n), product, C);
        const float mean = vector::dot(product, weights, C) / static_cast<float>(C);  // r·mean(g·x)
        vector::scale_by_weights(product, grad, r, weights, C);
        vector::add_scaled(product, -r * r * mean, in, C);
        const float* before = vector::load(dx + n * C, buffers.data() + 3 * C, C);
        float* out = vector::target(dx + n * C, buffers.data() + 3 * C);
        vector::add(out, before, product, C);
        vector::store(dx + n * C, out, C);
      }
    });
    sums.add_up(dw, 0, C);
  }

  void head_norms_forward(T* qkv, T* heads, float* rrms, const T* w, const AttentionShape& s,
                          float epsilon) const override {
    const int64_t count = s.H + s.K, D = s.D;
    parallel_for(s.B * s.T, kSmallestRows, [&](int64_t begin, int64_t end) {
      std::vector<float> buffers = scratch(4 * D);
      const float* weights = vector::load(w, buffers.data(), 2 * D);
      for (int64_t n = begin; n < end; ++n) {
        T* const row = qkv + n * s.qkv_stride();
        T* const kept = heads + n * count * D;
        std::copy_n(row, count * D, kept);
        for (int64_t h = 0; h < count; ++h) {
          const float* in = vector::load(kept + h * D, buffers.data() + 2 * D, D);
          float& r = rrms[n * count + h];
          r = 1.0f / std::sqrt(vector::sum_of_squares(in, D) / static_cast<float>(D) + epsilon);
          float* out = vector::target(row + h * D, buffers.data() + 3 * D);
          vector::scale_by_weights(out, in, r, weights + (h < s.H ? 0 : D), D);
          vector::store(row + h * D, out, D);
        }
      }
    });
  }

  // As rmsnorm_backward, but that nothing is added to what comes out.
  void head_norms_backward(T* dqkv, float* dw, const T* heads, const T* w, const float* rrms,
                           const AttentionShape& s) const override {
    const int64_t count = s.H + s.K, D = s.D;
    ColumnSums sums(s.B * s.T, 2 * D);
    sums.for_rows([&](int64_t begin, int64_t end, const auto& sums_of) {
      std::vector<float> buffers = scratch(5 * D);
      float* const product = buffers.data() + 4 * D;
      const float* all_weights = vector::load(w, buffers.data(), 2 * D);
      for (int64_t n = begin; n < end; ++n) {
        for (int64_t h = 0; h < count; ++h) {
          const int64_t which = h < s.H ? 0 : D;
          const float* weights = all_weights + which;
          const float r = rrms[n * count + h];
          T* const at = dqkv + n * s.qkv_stride() + h * D;
          const float* in = vector::load(heads + (n * count + h) * D, buffers.data() + 2 * D, D);
          const float* grad = vector::load(at, buffers.data() + 3 * D, D);
          vector::scale_by_weights(product, grad, r, in, D);  // dy·x·r
          vector::add(sums_of(n) + which, sums_of(n) + which, product, D);
          const float mean = vector::dot(product, weights, D) / static_cast<float>(D);
          vector::scale_by_weights(product, grad, r, weights, D);
          vector::add_scaled(product, -r * r * mean, in, D);
          std::copy_n(product, D, vector::target(at, buffers.data() + 3 * D));
          vector::store(at, buffers.data() + 3 * D, D);
        }
      }
    });
    sums.add_up(dw, 0, 2 * D);
  }

  void layernorm_forward(T* y, float* mean, float* rstd, T* x, const T* residual, const T* gamma,
                         const T* beta, int64_t N, int64_t C, float epsilon) const override {
    parallel_for(N, kSmallestRows, [&](int64_t begin, int64_t end) {
      std::vector<float> buffers(5 * C);
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
          in = vector::load(row, wide, C);  // so that it is what backward will read
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

  void layernorm_backward(T* dx, float* dgamma, float* dbeta, const T* dy, const T* x, const T* gamma,
                          const float* mean, const float* rstd, int64_t N, int64_t C) const override {
    ColumnSums sums(N, 2 * C);
    sums.for_rows([&](int64_t begin, int64_t end, const auto& sums_of) {
      std::vector<float> buffers = scratch(3 * C);
      float *wide_gradient = buffers.data(), *wide_x = wide_gradient + C;
      const float* g = vector::load(gamma, wide_gradient + 2 * C, C);
      for (int64_t n = begin; n < end; ++n) {
        const float* in = vector::load(x + n * C, wide_x, C);
        const float* gradient = vector::load(dy + n * C, wide_gradient, C);
        const auto means = vector::layernorm_gradient_means(sums_of(n), sums_of(n) + C, gradient, in, mean[n],
                                                            rstd[n], g, C);
        float* out = vector::target(dx + n * C, wide_gradient);
        vector::layernorm_gradient(out, gradient, in, mean[n], rstd[n], g, means, C);
        vector::store(dx + n * C, out, C);
      }
    });
    sums.add_up(dgamma, 0, C);
    sums.add_up(dbeta, C, C);
  }
};

}  // namespace

template <typename T>
const NormOps<T>& cpu_norms() {
  static const CpuNorms<T> ops;
  return ops;
}
template const NormOps<float>& cpu_norms();
template const NormOps<Bf16>& cpu_norms();

}  // namespace shardrun::kernels
