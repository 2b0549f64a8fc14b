#include "tests/support/reference_ops.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

namespace shardrun::kernels::reference {

void linear_forward(float* y, const float* x, const float* w, int64_t N, int64_t C, int64_t O) {
  for (int64_t n = 0; n < N; ++n) {
    for (int64_t o = 0; o < O; ++o) {
      double sum = 0.0;
      for (int64_t c = 0; c < C; ++c) sum += double{x[n * C + c]} * w[o * C + c];
      y[n * O + o] = static_cast<float>(sum);
    }
  }
}

void linear_backward_input(float* dx, const float* dy, const float* w, int64_t N, int64_t C, int64_t O) {
  for (int64_t n = 0; n < N; ++n) {
    for (int64_t c = 0; c < C; ++c) {
      double sum = 0.0;
      for (int64_t o = 0; o < O; ++o) sum += double{dy[n * O + o]} * w[o * C + c];
      dx[n * C + c] = static_cast<float>(sum);
    }
  }
}

void linear_backward_weight(float* dw, const float* dy, const float* x, int64_t N, int64_t C, int64_t O) {
  for (int64_t o = 0; o < O; ++o) {
    for (int64_t c = 0; c < C; ++c) {
      double sum = 0.0;
      for (int64_t n = 0; n < N; ++n) sum += double{dy[n * O + o]} * x[n * C + c];
      dw[o * C + c] = static_cast<float>(sum);
    }
  }
}

namespace {
double inverse_rms(const float* x, int64_t C, float epsilon) {
  double squares = 0.0;
  for (int64_t c = 0; c < C; ++c) squares += double{x[c]} * x[c];
  return 1.0 / std::sqrt(squares / static_cast<double>(C) + epsilon);
}
}  // namespace

void rmsnorm_forward(float* y, const float* x, const float* w, int64_t N, int64_t C, float epsilon) {
  for (int64_t n = 0; n < N; ++n) {
    const double r = inverse_rms(x + n * C, C, epsilon);
    for (int64_t c = 0; c < C; ++c) y[n * C + c] = static_cast<float>(x[n * C + c] * r * w[c]);
  }
}

void rmsnorm_backward(float* dx, float* dw, const float* dy, const float* x, const float* w, int64_t N,
                      int64_t C, float epsilon) {
  std::vector<double> weight_gradient(C, 0.0);
  for (int64_t n = 0; n < N; ++n) {
    const double r = inverse_rms(x + n * C, C, epsilon);
    double mean = 0.0;  // mean of x · gradient of the normalised row
    for (int64_t c = 0; c < C; ++c)
      mean += double{dy[n * C + c]} * w[c] * x[n * C + c] / static_cast<double>(C);
    for (int64_t c = 0; c < C; ++c) {
      const double through = r * dy[n * C + c] * w[c] - r * r * r * x[n * C + c] * mean;
      dx[n * C + c] += static_cast<float>(through);
      weight_gradient[c] += double{dy[n * C + c]} * x[n * C + c] * r;
    }
  }
  std::transform(weight_gradient.begin(), weight_gradient.end(), dw,
                 [](double v) { return static_cast<float>(v); });
}

namespace {

// Returns the offset of one head's vector at token t of sequence b.
int64_t head_at(const AttentionShape& s, int64_t b, int64_t t, int64_t head) {
  return (b * s.T + t) * s.qkv_stride() + head * s.D;
}

bool sees(const AttentionShape& s, const Visibility& v, int64_t b, int64_t t, int64_t u) {
  const bool same_document = v.begins == nullptr || v.begins[b * s.T + t] == v.begins[b * s.T + u];
  const bool is_padding = v.lengths != nullptr && u >= v.lengths[b];
  const bool in_window = v.window == 0 || u > t - v.window;
  return same_document && !is_padding && in_window && (!v.causal || u <= t);
}

// Returns the softmax weights of query t of head h over all keys; all are zero when it sees none.
std::vector<double> weights(const float* qkv, const AttentionShape& s, const Visibility& v, int64_t b,
                            int64_t h, int64_t t) {
  const float* q = qkv + head_at(s, b, t, h);
  std::vector<double> p(s.T, 0.0);
  double largest = -1e300, sum = 0.0;
  for (int64_t u = 0; u < s.T; ++u) {
    if (!sees(s, v, b, t, u)) continue;
    const float* k = qkv + head_at(s, b, u, s.H + h / (s.H / s.K));
    double score = 0.0;
    for (int64_t d = 0; d < s.D; ++d) score += double{q[d]} * k[d];
    p[u] = score / std::sqrt(static_cast<double>(s.D));
    largest = std::max(largest, p[u]);
  }
  for (int64_t u = 0; u < s.T; ++u) {
    double& value = p[u];
    value = sees(s, v, b, t, u) ? std::exp(value - largest) : 0.0;
    sum += value;
  }
  if (sum > 0.0) {
    for (double& value : p) value /= sum;
  }
  return p;
}

}  // namespace

void attention_forward(float* out, const float* qkv, const AttentionShape& s, const Visibility& visibility) {
  for (int64_t b = 0; b < s.B; ++b) {
    for (int64_t h = 0; h < s.H; ++h) {
      for (int64_t t = 0; t < s.T; ++t) {
        const std::vector<double> p = weights(qkv, s, visibility, b, h, t);
        for (int64_t d = 0; d < s.D; ++d) {
          double sum = 0.0;
          for (int64_t u = 0; u < s.T; ++u) {
            sum += p[u] * qkv[head_at(s, b, u, s.H + s.K + h / (s.H / s.K)) + d];
          }
          out[((b * s.T + t) * s.H + h) * s.D + d] = static_cast<float>(sum);
        }
      }
    }
  }
}

void attention_backward(float* dqkv, const float* dout, const float* qkv, const AttentionShape& s,
                        const Visibility& visibility) {
  std::vector<double> gradient(s.B * s.T * s.qkv_stride(), 0.0);
  const double scale = 1.0 / std::sqrt(static_cast<double>(s.D));
  for (int64_t b = 0; b < s.B; ++b) {
    for (int64_t h = 0; h < s.H; ++h) {
      const int64_t k_head = s.H + h / (s.H / s.K), v_head = k_head + s.K;
      for (int64_t t = 0; t < s.T; ++t) {
        const std::vector<double> p = weights(qkv, s, visibility, b, h, t);
        const float* dy = dout + ((b * s.T + t) * s.H + h) * s.D;
        std::vector<double> dp(p.size(), 0.0);
        double delta = 0.0;
        for (int64_t u = 0; u < s.T; ++u) {
          for (int64_t d = 0; d < s.D; ++d) {
            dp[u] += double{dy[d]} * qkv[head_at(s, b, u, v_head) + d];
            gradient[head_at(s, b, u, v_head) + d] += p[u] * dy[d];
          }
          delta += p[u] * dp[u];
        }
        for (int64_t u = 0; u < s.T; ++u) {
          const double ds = p[u] * (dp[u] - delta) * scale;
          for (int64_t d = 0; d < s.D; ++d) {
            gradient[head_at(s, b, t, h) + d] += ds * qkv[head_at(s, b, u, k_head) + d];
            gradient[head_at(s, b, u, k_head) + d] += ds * qkv[head_at(s, b, t, h) + d];
          }
        }
      }
    }
  }
  std::transform(gradient.begin(), gradient.end(), dqkv, [](double v) { return static_cast<float>(v); });
}

void bias_backward(float* dbias, const float* dy, int64_t N, int64_t O) {
  for (int64_t o = 0; o < O; ++o) {
    double sum = 0.0;
    for (int64_t n = 0; n < N; ++n) sum += dy[n * O + o];
    dbias[o] = static_cast<float>(sum);
  }
}

namespace {

// Returns (x - mean) / sqrt(variance + epsilon) of one row, and the divisor's inverse in `rstd`.
std::vector<double> normalized(const float* x, int64_t C, float epsilon, double& rstd) {
  std::vector<double> n(x, x + C);
  double mean = 0.0, variance = 0.0;
  for (const double value : n) mean += value / static_cast<double>(C);
  for (const double value : n) variance += (value - mean) * (value - mean) / static_cast<double>(C);
  rstd = 1.0 / std::sqrt(variance + epsilon);
  for (double& value : n) value = (value - mean) * rstd;
  return n;
}

double normal_distribution(double x) {
  return 0.5 * (1.0 + std::erf(x / std::sqrt(2.0)));
}

}  // namespace

void layernorm_forward(float* y, const float* x, const float* gamma, const float* beta, int64_t N, int64_t C,
                       float epsilon) {
  for (int64_t row = 0; row < N; ++row) {
    double rstd = 0.0;
    const std::vector<double> n = normalized(x + row * C, C, epsilon, rstd);
    for (int64_t c = 0; c < C; ++c) {
      y[row * C + c] = static_cast<float>(n[c] * gamma[c] + beta[c]);
    }
  }
}

void layernorm_backward(float* dx, float* dgamma, float* dbeta, const float* dy, const float* x,
                        const float* gamma, int64_t N, int64_t C, float epsilon) {
  std::vector<double> gamma_sum(C, 0.0), beta_sum(gamma_sum);
  for (int64_t row = 0; row < N; ++row) {
    double rstd = 0.0, mean_g = 0.0, mean_gn = 0.0;
    const std::vector<double> n = normalized(x + row * C, C, epsilon, rstd);
    for (size_t c = 0; c < n.size(); ++c) {
      const double dy_c = dy[row * C + static_cast<int64_t>(c)], g = dy_c * gamma[c];
      mean_g += g / static_cast<double>(C);
      mean_gn += g * n[c] / static_cast<double>(C);
      gamma_sum[c] += dy_c * n[c];
      beta_sum[c] += dy_c;
    }
    for (size_t c = 0; c < n.size(); ++c) {
      const int64_t at = row * C + static_cast<int64_t>(c);
      dx[at] = static_cast<float>(rstd * (double{dy[at]} * gamma[c] - mean_g - n[c] * mean_gn));
    }
  }
  std::transform(gamma_sum.begin(), gamma_sum.end(), dgamma, [](double v) { return static_cast<float>(v); });
  std::transform(beta_sum.begin(), beta_sum.end(), dbeta, [](double v) { return static_cast<float>(v); });
}

void gelu_forward(float* y, const float* x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = static_cast<float>(x[i] * normal_distribution(x[i]));
}

void gelu_backward(float* dx, const float* dy, const float* x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const double density = std::exp(-0.5 * double{x[i]} * x[i]) / std::sqrt(2.0 * std::numbers::pi);
    dx[i] = static_cast<float>(dy[i] * (normal_distribution(x[i]) + x[i] * density));
  }
}

void swiglu_forward(float* y, const float* gate_up, int64_t N, int64_t F) {
  for (int64_t n = 0; n < N; ++n) {
    for (int64_t f = 0; f < F; ++f) {
      const double gate = gate_up[n * 2 * F + f], up = gate_up[n * 2 * F + F + f];
      y[n * F + f] = static_cast<float>(gate / (1.0 + std::exp(-gate)) * up);
    }
  }
}

void swiglu_backward(float* dgate_up, const float* dy, const float* gate_up, int64_t N, int64_t F) {
  for (int64_t n = 0; n < N; ++n) {
    for (int64_t f = 0; f < F; ++f) {
      const double gate = gate_up[n * 2 * F + f], up = gate_up[n * 2 * F + F + f];
      const double sigmoid = 1.0 / (1.0 + std::exp(-gate));
      dgate_up[n * 2 * F + F + f] = static_cast<float>(dy[n * F + f] * gate * sigmoid);
      dgate_up[n * 2 * F + f] =
          static_cast<float>(dy[n * F + f] * up * sigmoid * (1.0 + gate * (1.0 - sigmoid)));
    }
  }
}

double cross_entropy(float* dlogits, const float* logits, const int32_t* targets, int64_t N, int64_t V,
                     float loss_scale) {
  double total = 0.0;
  for (int64_t n = 0; n < N; ++n) {
    const double largest = *std::max_element(logits + n * V, logits + (n + 1) * V);
    double sum = 0.0;
    for (int64_t v = 0; v < V; ++v) sum += std::exp(logits[n * V + v] - largest);
    const bool carries_loss = targets[n] >= 0;
    if (carries_loss) total += std::log(sum) + largest - logits[n * V + targets[n]];
    for (int64_t v = 0; v < V; ++v) {
      const double p = std::exp(logits[n * V + v] - largest) / sum;
      dlogits[n * V + v] = carries_loss ? static_cast<float>((p - (v == targets[n])) * loss_scale) : 0.0f;
    }
  }
  return total;
}

void adamw_step(float* master, float* moment1, float* moment2, const float* gradient, int64_t count,
                const AdamWParameters& p) {
  for (int64_t i = 0; i < count; ++i) {
    const double g = double{gradient[i]} * p.gradient_scale;
    moment1[i] = static_cast<float>(double{p.beta1} * moment1[i] + (1.0 - p.beta1) * g);
    moment2[i] = static_cast<float>(double{p.beta2} * moment2[i] + (1.0 - p.beta2) * g * g);
    const double step =
        moment1[i] / p.bias_correction1 / (std::sqrt(moment2[i] / p.bias_correction2) + p.epsilon);
    master[i] = static_cast<float>(master[i] - p.learning_rate * (step + p.weight_decay * master[i]));
  }
}

}  // namespace shardrun::kernels::reference
