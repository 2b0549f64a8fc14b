#include "runtime/kernels/cpu/vector.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

// The dynamic loader picks a clone before a sanitizer is up, which crashes; sanitized builds run the
// baseline.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__) || defined(__clang__) || \
    !defined(__x86_64__)
#define SHARDRUN_CLONES
#else
#define SHARDRUN_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#endif

namespace shardrun::kernels::vector {
namespace {

constexpr int kLanes = 16;  // of the explicit partial sums: one AVX-512 register, in a fixed order

// Cephes' expf: range reduction by ln 2 and a polynomial of degree 6; branch-free, so that loops vectorise.
inline __attribute__((always_inline)) float exponential(float x) {
  x = std::min(std::max(x, -87.0f), 88.0f);
  const float scaled = x * 1.44269504088896341f;
  const auto whole = static_cast<int32_t>(scaled + (scaled < 0.0f ? -0.5f : 0.5f));
  const auto n = static_cast<float>(whole);
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  return p * std::bit_cast<float>((whole + 127) << 23);
}

inline __attribute__((always_inline)) float combine(const float (&partial)[kLanes]) {
  float sum = 0.0f;
  for (const float lane : partial) sum += lane;
  return sum;
}

}  // namespace

SHARDRUN_CLONES void widen(float* __restrict out, const Bf16* __restrict in, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = std::bit_cast<float>(static_cast<uint32_t>(in[i].bits) << 16);
}

SHARDRUN_CLONES void narrow(Bf16* __restrict out, const float* __restrict in, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<uint32_t>(in[i]);
    const uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
    const bool is_nan = (bits & 0x7fffffffU) > 0x7f800000U;
    out[i].bits = static_cast<uint16_t>(is_nan ? 0x7fc0U : rounded);
  }
}

SHARDRUN_CLONES float dot(const float* __restrict a, const float* __restrict b, int64_t count) {
  float partial[kLanes] = {};
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) partial[lane] += a[i + lane] * b[i + lane];
  }
  for (int64_t i = whole; i < count; ++i) partial[i - whole] += a[i] * b[i];
  return combine(partial);
}

SHARDRUN_CLONES float sum_of_squares(const float* __restrict x, int64_t count) {
  float partial[kLanes] = {};
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) partial[lane] += x[i + lane] * x[i + lane];
  }
  for (int64_t i = whole; i < count; ++i) partial[i - whole] += x[i] * x[i];
  return combine(partial);
}

SHARDRUN_CLONES float maximum(const float* __restrict x, int64_t count) {
  float partial[kLanes];
  for (float& lane : partial) lane = -std::numeric_limits<float>::infinity();
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane)
      partial[lane] = x[i + lane] > partial[lane] ? x[i + lane] : partial[lane];
  }
  for (int64_t i = whole; i < count; ++i) partial[i - whole] = std::max(partial[i - whole], x[i]);
  float largest = partial[0];
  for (const float lane : partial) largest = std::max(largest, lane);
  return largest;
}

SHARDRUN_CLONES void add_scaled(float* __restrict y, float a, const float* __restrict x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] += a * x[i];
}

SHARDRUN_CLONES void scale(float* y, float a, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] *= a;
}

SHARDRUN_CLONES void add(float* y, const float* a, const float* b, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = a[i] + b[i];
}

SHARDRUN_CLONES void scale_by_weights(float* __restrict y, const float* __restrict x, float a,
                                      const float* __restrict w, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = x[i] * a * w[i];
}

SHARDRUN_CLONES float exp_shifted(float* y, const float* x, float shift, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = exponential(x[i] - shift);
  float partial[kLanes] = {};
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) partial[lane] += y[i + lane];
  }
  for (int64_t i = whole; i < count; ++i) partial[i - whole] += y[i];
  return combine(partial);
}

SHARDRUN_CLONES void swiglu(float* __restrict y, const float* __restrict gate, const float* __restrict up,
                            int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = gate[i] / (1.0f + exponential(-gate[i])) * up[i];
}

SHARDRUN_CLONES void swiglu_gradient(float* __restrict dgate, float* __restrict dup,
                                     const float* __restrict dy, const float* __restrict gate,
                                     const float* __restrict up, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float sigmoid = 1.0f / (1.0f + exponential(-gate[i]));
    const float silu = gate[i] * sigmoid;
    dup[i] = dy[i] * silu;
    dgate[i] = dy[i] * up[i] * (sigmoid + silu * (1.0f - sigmoid));
  }
}

SHARDRUN_CLONES void rotate(float* __restrict low, float* __restrict high, const float* __restrict cosine,
                            const float* __restrict sine, float sign, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float a = low[i], b = high[i];
    low[i] = a * cosine[i] - sign * b * sine[i];
    high[i] = b * cosine[i] + sign * a * sine[i];
  }
}

SHARDRUN_CLONES void adamw(float* __restrict master, float* __restrict moment1, float* __restrict moment2,
                           const float* __restrict gradient, int64_t count,
                           const AdamWParameters& parameters) {
  const AdamWParameters p = parameters;
  const float decay = 1.0f - p.learning_rate * p.weight_decay;
  const float rate = p.learning_rate / p.bias_correction1;
  const float root = 1.0f / std::sqrt(p.bias_correction2);
  for (int64_t i = 0; i < count; ++i) {
    const float g = gradient[i] * p.gradient_scale;
    const float m = p.beta1 * moment1[i] + (1.0f - p.beta1) * g;
    const float v = p.beta2 * moment2[i] + (1.0f - p.beta2) * g * g;
    moment1[i] = m;
    moment2[i] = v;
    master[i] = master[i] * decay - rate * m / (std::sqrt(v) * root + p.epsilon);
  }
}

SHARDRUN_CLONES void multiply_add(float* __restrict c, int64_t ldc, const float* __restrict a, int64_t lda,
                                  const float* __restrict b, int64_t ldb, int64_t rows, int64_t inner,
                                  int64_t columns) {
  int64_t row = 0;
  for (; row + 4 <= rows; row += 4) {  // four rows share each load of b
    float* c0 = c + row * ldc;
    const float* a0 = a + row * lda;
    for (int64_t k = 0; k < inner; ++k) {
      const float x0 = a0[k], x1 = a0[lda + k], x2 = a0[2 * lda + k], x3 = a0[3 * lda + k];
      const float* y = b + k * ldb;
      for (int64_t j = 0; j < columns; ++j) {
        c0[j] += x0 * y[j];
        c0[ldc + j] += x1 * y[j];
        c0[2 * ldc + j] += x2 * y[j];
        c0[3 * ldc + j] += x3 * y[j];
      }
    }
  }
  for (; row < rows; ++row) {
    for (int64_t k = 0; k < inner; ++k) {
      for (int64_t j = 0; j < columns; ++j) c[row * ldc + j] += a[row * lda + k] * b[k * ldb + j];
    }
  }
}

SHARDRUN_CLONES void multiply_add_transposed(float* __restrict c, int64_t ldc, const float* __restrict a,
                                             int64_t lda, const float* __restrict b, int64_t ldb,
                                             int64_t rows, int64_t inner, int64_t columns) {
  for (int64_t k = 0; k < inner; ++k) {
    const float* y = b + k * ldb;
    for (int64_t row = 0; row < rows; ++row) {
      const float x = a[k * lda + row];
      for (int64_t j = 0; j < columns; ++j) c[row * ldc + j] += x * y[j];
    }
  }
}

}  // namespace shardrun::kernels::vector
