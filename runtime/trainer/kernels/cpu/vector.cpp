#include "runtime/trainer/kernels/cpu/vector.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "runtime/trainer/kernels/cpu/dispatch.h"

namespace shardrun::kernels::vector {
namespace {

constexpr int kLanes = 16;  // width of the explicit partial sums: one AVX-512 register, in a fixed order

// Computes Cephes' expf: range reduction by ln 2 and a polynomial of degree 6; branch-free, so that loops vectorise.
SHARDRUN_INLINE float exponential(float x) {
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

// Computes erf as x·P(x²)/Q(x²), the minimax fit on [-4, 4] that Eigen uses; beyond it erf is 1 in fp32 but for 2e-8.
SHARDRUN_INLINE float error_function(float x) {
  x = std::min(std::max(x, -4.0f), 4.0f);
  const float square = x * x;
  float p = -2.72614225801306e-10f;
  p = p * square + 2.77068142495902e-08f;
  p = p * square - 2.10102402082508e-06f;
  p = p * square - 5.69250639462346e-05f;
  p = p * square - 7.34990630326855e-04f;
  p = p * square - 2.95459980854025e-03f;
  p = p * square - 1.60960333262415e-02f;
  float q = -1.45660718464996e-05f;
  q = q * square - 2.13374055278905e-04f;
  q = q * square - 1.68282697438203e-03f;
  q = q * square - 7.37332916720468e-03f;
  q = q * square - 1.42647390514189e-02f;
  return x * p / q;
}

// Computes Φ, the standard normal distribution function.
SHARDRUN_INLINE float normal_distribution(float x) {
  return 0.5f + 0.5f * error_function(x * 0.70710678118654752f);
}

SHARDRUN_INLINE float combine(const float (&partial)[kLanes]) {
  float sum = 0.0f;
  for (const float lane : partial) sum += lane;
  return sum;
}

namespace body {

SHARDRUN_INLINE void widen(float* __restrict out, const Bf16* __restrict in, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = std::bit_cast<float>(static_cast<uint32_t>(in[i].bits) << 16);
}

SHARDRUN_INLINE Bf16 rounded(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t nearest = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const bool is_nan = (bits & 0x7fffffffU) > 0x7f800000U;
  return {static_cast<uint16_t>(is_nan ? 0x7fc0U : nearest)};
}

SHARDRUN_INLINE void narrow(Bf16* __restrict out, const float* __restrict in, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = rounded(in[i]);
}

SHARDRUN_INLINE void widen_rows(float* out, const Bf16* in, int64_t rows, int64_t count, int64_t stride) {
  for (int64_t r = 0; r < rows; ++r) widen(out + r * count, in + r * stride, count);
}
SHARDRUN_INLINE void narrow_rows(Bf16* out, const float* in, int64_t rows, int64_t count, int64_t stride) {
  for (int64_t r = 0; r < rows; ++r) narrow(out + r * stride, in + r * count, count);
}
SHARDRUN_INLINE float wide(float value) {
  return value;
}
SHARDRUN_INLINE float wide(Bf16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}
template <typename T>
SHARDRUN_INLINE void transpose(float* __restrict out, int64_t out_stride, const T* __restrict in,
                               int64_t rows, int64_t count, int64_t stride) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t d = 0; d < count; ++d) out[d * out_stride + r] = wide(in[r * stride + d]);
  }
}
SHARDRUN_INLINE void softmax_gradient(float* __restrict dp, const float* __restrict p,
                                      const float* __restrict delta, int64_t rows, int64_t count,
                                      int64_t stride) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < count; ++c)
      dp[r * stride + c] = p[r * stride + c] * (dp[r * stride + c] - delta[r]);
  }
}

SHARDRUN_INLINE void row_products(float* __restrict out, const Bf16* __restrict a, const Bf16* __restrict b,
                                  int64_t rows, int64_t count, int64_t stride) {
  for (int64_t r = 0; r < rows; ++r) {
    float partial[kLanes] = {};  // count is a multiple of kLanes
    for (int64_t i = 0; i < count; i += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane)
        partial[lane] += wide(a[r * stride + i + lane]) * wide(b[r * stride + i + lane]);
    }
    out[r] = combine(partial);
  }
}

SHARDRUN_INLINE float dot(const float* __restrict a, const float* __restrict b, int64_t count) {
  float partial[kLanes] = {};
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) partial[lane] += a[i + lane] * b[i + lane];
  }
  for (int64_t i = whole; i < count; ++i) partial[i - whole] += a[i] * b[i];
  return combine(partial);
}

SHARDRUN_INLINE float sum_of_squares(const float* __restrict x, int64_t count) {
  float partial[kLanes] = {};
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) partial[lane] += x[i + lane] * x[i + lane];
  }
  for (int64_t i = whole; i < count; ++i) partial[i - whole] += x[i] * x[i];
  return combine(partial);
}

SHARDRUN_INLINE float maximum(const float* __restrict x, int64_t count) {
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

SHARDRUN_INLINE void add_scaled(float* __restrict y, float a, const float* __restrict x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] += a * x[i];
}

SHARDRUN_INLINE void scale(float* y, float a, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] *= a;
}

SHARDRUN_INLINE void add(float* y, const float* a, const float* b, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = a[i] + b[i];
}

SHARDRUN_INLINE void scale_by_weights(float* __restrict y, const float* __restrict x, float a,
                                      const float* __restrict w, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = x[i] * a * w[i];
}

SHARDRUN_INLINE float exp_shifted(float* y, const float* x, float shift, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = exponential(x[i] - shift);
  float partial[kLanes] = {};
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) partial[lane] += y[i + lane];
  }
  for (int64_t i = whole; i < count; ++i) partial[i - whole] += y[i];
  return combine(partial);
}

SHARDRUN_INLINE void swiglu(float* __restrict y, const float* __restrict gate, const float* __restrict up,
                            int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = gate[i] / (1.0f + exponential(-gate[i])) * up[i];
}

SHARDRUN_INLINE void swiglu_gradient(float* __restrict dgate, float* __restrict dup,
                                     const float* __restrict dy, const float* __restrict gate,
                                     const float* __restrict up, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float sigmoid = 1.0f / (1.0f + exponential(-gate[i]));
    const float silu = gate[i] * sigmoid;
    dup[i] = dy[i] * silu;
    dgate[i] = dy[i] * up[i] * (sigmoid + silu * (1.0f - sigmoid));
  }
}

SHARDRUN_INLINE void normalize(float* __restrict y, const float* __restrict x, float mean, float rstd,
                               const float* __restrict gamma, const float* __restrict beta, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = (x[i] - mean) * rstd * gamma[i] + beta[i];
}

SHARDRUN_INLINE float sum(const float* __restrict x, int64_t count) {
  float partial[kLanes] = {};
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) partial[lane] += x[i + lane];
  }
  for (int64_t i = whole; i < count; ++i) partial[i - whole] += x[i];
  return combine(partial);
}

SHARDRUN_INLINE float sum_of_squared_deviations(const float* __restrict x, float mean, int64_t count) {
  float partial[kLanes] = {};
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const float deviation = x[i + lane] - mean;
      partial[lane] += deviation * deviation;
    }
  }
  for (int64_t i = whole; i < count; ++i) partial[i - whole] += (x[i] - mean) * (x[i] - mean);
  return combine(partial);
}

SHARDRUN_INLINE LayerNormMeans layernorm_gradient_means(float* __restrict dgamma, float* __restrict dbeta,
                                                        const float* __restrict dy, const float* __restrict x,
                                                        float mean, float rstd, const float* __restrict gamma,
                                                        int64_t count) {
  float g[kLanes] = {}, gn[kLanes] = {};
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const float n = (x[i + lane] - mean) * rstd, gradient = dy[i + lane];
      dgamma[i + lane] += gradient * n;
      dbeta[i + lane] += gradient;
      g[lane] += gradient * gamma[i + lane];
      gn[lane] += gradient * gamma[i + lane] * n;
    }
  }
  for (int64_t i = whole; i < count; ++i) {
    const float n = (x[i] - mean) * rstd;
    dgamma[i] += dy[i] * n;
    dbeta[i] += dy[i];
    g[i - whole] += dy[i] * gamma[i];
    gn[i - whole] += dy[i] * gamma[i] * n;
  }
  const auto size = static_cast<float>(count);
  return {combine(g) / size, combine(gn) / size};
}

SHARDRUN_INLINE void layernorm_gradient(float* dx, const float* dy, const float* __restrict x, float mean,
                                        float rstd, const float* __restrict gamma, LayerNormMeans means,
                                        int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float n = (x[i] - mean) * rstd;
    dx[i] = rstd * (dy[i] * gamma[i] - means.g - n * means.gn);
  }
}

SHARDRUN_INLINE void gelu(float* __restrict y, const float* __restrict x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = x[i] * normal_distribution(x[i]);
}

SHARDRUN_INLINE void gelu_gradient(float* dx, const float* dy, const float* __restrict x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float density = 0.3989422804014327f * exponential(-0.5f * x[i] * x[i]);
    dx[i] = dy[i] * (normal_distribution(x[i]) + x[i] * density);
  }
}

SHARDRUN_INLINE void rotate(float* __restrict low, float* __restrict high, const float* __restrict cosine,
                            const float* __restrict sine, float sign, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float a = low[i], b = high[i];
    low[i] = a * cosine[i] - sign * b * sine[i];
    high[i] = b * cosine[i] + sign * a * sine[i];
  }
}

SHARDRUN_INLINE void adamw(float* __restrict master, float* __restrict moment1, float* __restrict moment2,
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

SHARDRUN_INLINE float lamb_update(float master, float moment1, float moment2, float rate1, float root2,
                                  const LambParameters& p) {
  return rate1 * moment1 / (std::sqrt(moment2) * root2 + p.epsilon) + p.weight_decay * master;
}

SHARDRUN_INLINE Squares lamb_measure(const float* __restrict master, float* __restrict moment1,
                                     float* __restrict moment2, const float* __restrict gradient,
                                     int64_t count, const LambParameters& parameters) {
  const LambParameters p = parameters;
  const float rate1 = 1.0f / p.bias_correction1, root2 = 1.0f / std::sqrt(p.bias_correction2);
  float masters[kLanes] = {}, updates[kLanes] = {};
  for (int64_t i = 0; i < count; ++i) {
    const float g = gradient[i] * p.gradient_scale;
    moment1[i] = p.beta1 * moment1[i] + (1.0f - p.beta1) * g;
    moment2[i] = p.beta2 * moment2[i] + (1.0f - p.beta2) * g * g;
  }
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t lanes = i < whole ? kLanes : count - whole;
    for (int64_t lane = 0; lane < lanes; ++lane) {
      const float w = master[i + lane];
      const float update = lamb_update(w, moment1[i + lane], moment2[i + lane], rate1, root2, p);
      masters[lane] += w * w;
      updates[lane] += update * update;
    }
  }
  return {combine(masters), combine(updates)};
}

SHARDRUN_INLINE void lamb_apply(float* __restrict master, const float* __restrict moment1,
                                const float* __restrict moment2, float rate, int64_t count,
                                const LambParameters& parameters) {
  const LambParameters p = parameters;
  const float rate1 = 1.0f / p.bias_correction1, root2 = 1.0f / std::sqrt(p.bias_correction2);
  for (int64_t i = 0; i < count; ++i) {
    master[i] -= rate * lamb_update(master[i], moment1[i], moment2[i], rate1, root2, p);
  }
}

}  // namespace body
}  // namespace

void widen(float* out, const Bf16* in, int64_t count) {
  dispatch<body::widen>(out, in, count);
}
void narrow(Bf16* out, const float* in, int64_t count) {
  dispatch<body::narrow>(out, in, count);
}
void widen_rows(float* out, const Bf16* in, int64_t rows, int64_t count, int64_t stride) {
  dispatch<body::widen_rows>(out, in, rows, count, stride);
}
void narrow_rows(Bf16* out, const float* in, int64_t rows, int64_t count, int64_t stride) {
  dispatch<body::narrow_rows>(out, in, rows, count, stride);
}
void transpose(float* out, int64_t out_stride, const float* in, int64_t rows, int64_t count, int64_t stride) {
  dispatch<body::transpose<float>>(out, out_stride, in, rows, count, stride);
}
void transpose(float* out, int64_t out_stride, const Bf16* in, int64_t rows, int64_t count, int64_t stride) {
  dispatch<body::transpose<Bf16>>(out, out_stride, in, rows, count, stride);
}
void softmax_gradient(float* dp, const float* p, const float* delta, int64_t rows, int64_t count,
                      int64_t stride) {
  dispatch<body::softmax_gradient>(dp, p, delta, rows, count, stride);
}
void row_products(float* out, const Bf16* a, const Bf16* b, int64_t rows, int64_t count, int64_t stride) {
  dispatch<body::row_products>(out, a, b, rows, count, stride);
}
float dot(const float* a, const float* b, int64_t count) {
  return dispatch<body::dot>(a, b, count);
}
float sum_of_squares(const float* x, int64_t count) {
  return dispatch<body::sum_of_squares>(x, count);
}
float maximum(const float* x, int64_t count) {
  return dispatch<body::maximum>(x, count);
}
void add_scaled(float* y, float a, const float* x, int64_t count) {
  dispatch<body::add_scaled>(y, a, x, count);
}
void scale(float* y, float a, int64_t count) {
  dispatch<body::scale>(y, a, count);
}
void add(float* y, const float* a, const float* b, int64_t count) {
  dispatch<body::add>(y, a, b, count);
}
void scale_by_weights(float* y, const float* x, float a, const float* w, int64_t count) {
  dispatch<body::scale_by_weights>(y, x, a, w, count);
}
float exp_shifted(float* y, const float* x, float shift, int64_t count) {
  return dispatch<body::exp_shifted>(y, x, shift, count);
}
void swiglu(float* y, const float* gate, const float* up, int64_t count) {
  dispatch<body::swiglu>(y, gate, up, count);
}
void swiglu_gradient(float* dgate, float* dup, const float* dy, const float* gate, const float* up,
                     int64_t count) {
  dispatch<body::swiglu_gradient>(dgate, dup, dy, gate, up, count);
}
void normalize(float* y, const float* x, float mean, float rstd, const float* gamma, const float* beta,
               int64_t count) {
  dispatch<body::normalize>(y, x, mean, rstd, gamma, beta, count);
}
float sum(const float* x, int64_t count) {
  return dispatch<body::sum>(x, count);
}
float sum_of_squared_deviations(const float* x, float mean, int64_t count) {
  return dispatch<body::sum_of_squared_deviations>(x, mean, count);
}
LayerNormMeans layernorm_gradient_means(float* dgamma, float* dbeta, const float* dy, const float* x,
                                        float mean, float rstd, const float* gamma, int64_t count) {
  return dispatch<body::layernorm_gradient_means>(dgamma, dbeta, dy, x, mean, rstd, gamma, count);
}
void layernorm_gradient(float* dx, const float* dy, const float* x, float mean, float rstd,
                        const float* gamma, LayerNormMeans means, int64_t count) {
  dispatch<body::layernorm_gradient>(dx, dy, x, mean, rstd, gamma, means, count);
}
void gelu(float* y, const float* x, int64_t count) {
  dispatch<body::gelu>(y, x, count);
}
void gelu_gradient(float* dx, const float* dy, const float* x, int64_t count) {
  dispatch<body::gelu_gradient>(dx, dy, x, count);
}
void rotate(float* low, float* high, const float* cosine, const float* sine, float sign, int64_t count) {
  dispatch<body::rotate>(low, high, cosine, sine, sign, count);
}
void adamw(float* master, float* moment1, float* moment2, const float* gradient, int64_t count,
           const AdamWParameters& parameters) {
  dispatch<body::adamw>(master, moment1, moment2, gradient, count, parameters);
}
Squares lamb_measure(const float* master, float* moment1, float* moment2, const float* gradient,
                     int64_t count, const LambParameters& parameters) {
  return dispatch<body::lamb_measure>(master, moment1, moment2, gradient, count, parameters);
}
void lamb_apply(float* master, const float* moment1, const float* moment2, float rate, int64_t count,
                const LambParameters& parameters) {
  dispatch<body::lamb_apply>(master, moment1, moment2, rate, count, parameters);
}
}  // namespace shardrun::kernels::vector
