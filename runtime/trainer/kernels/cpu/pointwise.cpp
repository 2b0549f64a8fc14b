// Everything that is neither a matrix product nor attention: row by row, in fp32 (kernels/cpu/vector.h).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/trainer/kernels/cpu/parallel.h"
#include "runtime/trainer/kernels/cpu/vector.h"
#include "runtime/trainer/kernels/ops.h"

namespace shardrun::kernels {
namespace {

constexpr int64_t kSmallestRows = 16;  // fewer are not worth a thread
constexpr int64_t kSmallestColumns = 64;
constexpr int64_t kSmallestElements = 64 * 1024;

std::vector<float> scratch(int64_t count) {
  return std::vector<float>(count);
}

}  // namespace

void fp32_to_bf16(std::span<const float> in, std::span<Bf16> out) {
  SHARDRUN_CHECK(in.size() == out.size());
  parallel_for(static_cast<int64_t>(in.size()), kSmallestElements, [&](int64_t begin, int64_t end) {
    vector::narrow(out.data() + begin, in.data() + begin, end - begin);
  });
}

void fp32_to_bf16(std::span<const float> in, std::span<uint16_t> out) {
  static_assert(sizeof(Bf16) == sizeof(uint16_t) && alignof(Bf16) == alignof(uint16_t));
  fp32_to_bf16(in, std::span(reinterpret_cast<Bf16*>(out.data()), out.size()));
}

void bf16_to_fp32(std::span<const Bf16> in, std::span<float> out) {
  SHARDRUN_CHECK(in.size() == out.size());
  parallel_for(static_cast<int64_t>(in.size()), kSmallestElements, [&](int64_t begin, int64_t end) {
    vector::widen(out.data() + begin, in.data() + begin, end - begin);
  });
}

template <typename T>
void embedding_forward(T* y, const int32_t* tokens, const T* w, int64_t N, int64_t C) {
  for (int64_t n = 0; n < N; ++n)
    std::memcpy(y + n * C, w + tokens[n] * C, static_cast<size_t>(C) * sizeof(T));
}

template <typename T>
void embedding_backward(float* dw, const int32_t* tokens, const T* dy, int64_t N, int64_t C, int64_t V,
                        bool accumulate) {
  // Each thread owns some columns, so that a row's sum has one order.
  parallel_for(C, kSmallestColumns, [&](int64_t begin, int64_t end) {
    const int64_t columns = end - begin;
    for (int64_t v = 0; v < V && !accumulate; ++v) std::fill_n(dw + v * C + begin, columns, 0.0f);
    std::vector<float> wide = scratch(columns);
    for (int64_t n = 0; n < N; ++n) {
      float* row = dw + tokens[n] * C + begin;
      vector::add(row, row, vector::load(dy + n * C + begin, wide.data(), columns), columns);
    }
  });
}

template <typename T>
void embedding_sum_forward(T* y, const int32_t* tokens, const int32_t* positions, const int32_t* segments,
                           const T* word, const T* position, const T* type, int64_t N, int64_t C) {
  parallel_for(N, kSmallestRows, [&](int64_t begin, int64_t end) {
    std::vector<float> buffers = scratch(4 * C);
    for (int64_t n = begin; n < end; ++n) {
      float* out = vector::target(y + n * C, buffers.data());
      vector::add(out, vector::load(word + tokens[n] * C, buffers.data() + C, C),
                  vector::load(type + segments[n] * C, buffers.data() + 2 * C, C), C);
      vector::add(out, out, vector::load(position + positions[n] * C, buffers.data() + 3 * C, C), C);
      vector::store(y + n * C, out, C);
    }
  });
}

template <typename T>
void scatter_rows(T* y, const int32_t* rows, const T* x, int64_t M, int64_t N, int64_t C) {
  const size_t row_bytes = static_cast<size_t>(C) * sizeof(T);
  std::memset(static_cast<void*>(y), 0, static_cast<size_t>(N) * row_bytes);
  for (int64_t m = 0; m < M; ++m) std::memcpy(y + rows[m] * C, x + m * C, row_bytes);
}

// Sums rows in groups and then the groups in order, which keeps the error of a long sum small.
template <typename T>
void bias_backward(float* dbias, const T* dy, int64_t N, int64_t O, bool accumulate) {
  constexpr int64_t kGroup = 32;
  parallel_for(O, kSmallestColumns, [&](int64_t begin, int64_t end) {
    const int64_t columns = end - begin;
    std::vector<float> buffers = scratch(3 * columns);
    float *wide = buffers.data(), *group = wide + columns, *total = group + columns;
    if (accumulate) std::copy(dbias + begin, dbias + end, total);
    for (int64_t first = 0; first < N; first += kGroup) {
      std::fill_n(group, columns, 0.0f);
      for (int64_t n = first; n < std::min(N, first + kGroup); ++n) {
        vector::add(group, group, vector::load(dy + n * O + begin, wide, columns), columns);
      }
      vector::add(total, total, group, columns);
    }
    std::copy(total, total + columns, dbias + begin);
  });
}

void rope_table(float* table, int64_t T, int64_t D, double theta) {
  const int64_t half = D / 2;
  for (int64_t t = 0; t < T; ++t) {
    for (int64_t i = 0; i < half; ++i) {
      const double angle =
          static_cast<double>(t) * std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(D));
      table[t * D + i] = static_cast<float>(std::cos(angle));
      table[t * D + half + i] = static_cast<float>(std::sin(angle));
    }
  }
}

template <typename Type>
void rope(Type* x, const float* table, int64_t B, int64_t T, int64_t heads, int64_t D, int64_t stride,
          bool inverse) {
  const int64_t half = D / 2;
  parallel_for(B * T, kSmallestRows, [&](int64_t begin, int64_t end) {
    std::vector<float> wide = scratch(heads * D);
    for (int64_t n = begin; n < end; ++n) {
      const float* angles = table + n % T * D;
      Type* row = x + n * stride;
      float* values = const_cast<float*>(vector::load(row, wide.data(), heads * D));
      for (int64_t head = 0; head < heads; ++head) {
        float* at = values + head * D;
        vector::rotate(at, at + half, angles, angles + half, inverse ? -1.0f : 1.0f, half);
      }
      vector::store(row, values, heads * D);
    }
  });
}

template <typename T>
void swiglu_forward(T* y, const T* gate_up, int64_t N, int64_t F) {
  parallel_for(N, kSmallestRows, [&](int64_t begin, int64_t end) {
    std::vector<float> buffers = scratch(3 * F);
    for (int64_t n = begin; n < end; ++n) {
      const float* both = vector::load(gate_up + n * 2 * F, buffers.data(), 2 * F);
      float* out = vector::target(y + n * F, buffers.data() + 2 * F);
      vector::swiglu(out, both, both + F, F);
      vector::store(y + n * F, out, F);
    }
  });
}

template <typename T>
void swiglu_backward(T* dgate_up, const T* dy, const T* gate_up, int64_t N, int64_t F) {
  parallel_for(N, kSmallestRows, [&](int64_t begin, int64_t end) {
    std::vector<float> buffers = scratch(5 * F);
    for (int64_t n = begin; n < end; ++n) {
      const float* both = vector::load(gate_up + n * 2 * F, buffers.data(), 2 * F);
      const float* grad = vector::load(dy + n * F, buffers.data() + 2 * F, F);
      float* out = vector::target(dgate_up + n * 2 * F, buffers.data() + 3 * F);
      vector::swiglu_gradient(out, out + F, grad, both, both + F, F);
      vector::store(dgate_up + n * 2 * F, out, 2 * F);
    }
  });
}

namespace {

constexpr int64_t kChunk = 2048;  // a few chunks of fp32 stay in the first-level cache

// Runs body(begin, size) over chunks of `count` elements, on all threads.
template <typename Body>
void for_chunks(int64_t count, const Body& body) {
  parallel_for((count + kChunk - 1) / kChunk, 32, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin * kChunk; at < std::min(count, end * kChunk); at += kChunk) {
      body(at, std::min(kChunk, count - at));
    }
  });
}

}  // namespace

template <typename T>
void gelu_forward(T* y, const T* x, int64_t count) {
  for_chunks(count, [&](int64_t at, int64_t size) {
    float in[kChunk], result[kChunk];
    float* out = vector::target(y + at, result);
    vector::gelu(out, vector::load(x + at, in, size), size);
    vector::store(y + at, out, size);
  });
}

template <typename T>
void gelu_backward(T* dx, const T* dy, const T* x, int64_t count) {
  for_chunks(count, [&](int64_t at, int64_t size) {
    float in[kChunk], result[kChunk];
    float* out = vector::target(dx + at, result);
    vector::gelu_gradient(out, vector::load(dy + at, result, size), vector::load(x + at, in, size), size);
    vector::store(dx + at, out, size);
  });
}

template <typename T>
void tanh_forward(T* y, const T* x, int64_t count) {
  for_chunks(count, [&](int64_t at, int64_t size) {
    float wide[kChunk];
    const float* in = vector::load(x + at, wide, size);
    float* out = vector::target(y + at, wide);
    for (int64_t i = 0; i < size; ++i) out[i] = std::tanh(in[i]);
    vector::store(y + at, out, size);
  });
}

template <typename T>
void tanh_backward(T* dx, const T* dy, const T* y, int64_t count) {
  for_chunks(count, [&](int64_t at, int64_t size) {
    float wide[kChunk], values[kChunk];
    const float* grad = vector::load(dy + at, wide, size);
    const float* value = vector::load(y + at, values, size);
    float* out = vector::target(dx + at, wide);
    for (int64_t i = 0; i < size; ++i) out[i] = grad[i] * (1.0f - value[i] * value[i]);
    vector::store(dx + at, out, size);
  });
}

template <typename T>
void add(T* y, const T* a, const T* b, int64_t count) {
  for_chunks(count, [&](int64_t at, int64_t size) {
    float left[kChunk], right[kChunk];
    float* out = vector::target(y + at, left);
    vector::add(out, vector::load(a + at, left, size), vector::load(b + at, right, size), size);
    vector::store(y + at, out, size);
  });
}

template <typename T>
double cross_entropy(T* dlogits, const float* logits, const int32_t* targets, int64_t N, int64_t V,
                     float loss_scale) {
  std::vector<double> losses(N, 0.0);
  parallel_for(N, kSmallestRows, [&](int64_t begin, int64_t end) {
    std::vector<float> wide = scratch(V);
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
  double sum = 0.0;
  for (const double loss : losses) sum += loss;
  return sum;
}

void adamw_step(std::span<float> master, std::span<float> moment1, std::span<float> moment2,
                std::span<const float> gradient, const AdamWParameters& parameters) {
  SHARDRUN_CHECK(master.size() == moment1.size() && master.size() == moment2.size() &&
                 master.size() == gradient.size());
  parallel_for(static_cast<int64_t>(master.size()), kSmallestElements, [&](int64_t begin, int64_t end) {
    vector::adamw(master.data() + begin, moment1.data() + begin, moment2.data() + begin,
                  gradient.data() + begin, end - begin, parameters);
  });
}

LambSquares lamb_measure(std::span<const float> master, std::span<float> moment1, std::span<float> moment2,
                         std::span<const float> gradient, const LambParameters& parameters) {
  SHARDRUN_CHECK(master.size() == moment1.size() && master.size() == moment2.size() &&
                 master.size() == gradient.size());
  const auto count = static_cast<int64_t>(master.size());
  std::vector<vector::Squares> parts((count + kChunk - 1) / kChunk);
  for_chunks(count, [&](int64_t at, int64_t size) {
    parts[at / kChunk] = vector::lamb_measure(master.data() + at, moment1.data() + at, moment2.data() + at,
                                              gradient.data() + at, size, parameters);
  });
  LambSquares sums{0.0, 0.0};
  for (const vector::Squares& part : parts) {
    sums.master += static_cast<double>(part.master);
    sums.update += static_cast<double>(part.update);
  }
  return sums;
}

void lamb_apply(std::span<float> master, std::span<const float> moment1, std::span<const float> moment2,
                float rate, const LambParameters& parameters) {
  SHARDRUN_CHECK(master.size() == moment1.size() && master.size() == moment2.size());
  for_chunks(static_cast<int64_t>(master.size()), [&](int64_t at, int64_t size) {
    vector::lamb_apply(master.data() + at, moment1.data() + at, moment2.data() + at, rate, size, parameters);
  });
}

#define SHARDRUN_INSTANTIATE(T)                                                                        \
  template void embedding_forward(T*, const int32_t*, const T*, int64_t, int64_t);                     \
  template void embedding_backward(float*, const int32_t*, const T*, int64_t, int64_t, int64_t, bool); \
  template void embedding_sum_forward(T*, const int32_t*, const int32_t*, const int32_t*, const T*,    \
                                      const T*, const T*, int64_t, int64_t);                           \
  template void scatter_rows(T*, const int32_t*, const T*, int64_t, int64_t, int64_t);                 \
  template void bias_backward(float*, const T*, int64_t, int64_t, bool);                               \
  template void gelu_forward(T*, const T*, int64_t);                                                   \
  template void gelu_backward(T*, const T*, const T*, int64_t);                                        \
  template void tanh_forward(T*, const T*, int64_t);                                                   \
  template void tanh_backward(T*, const T*, const T*, int64_t);                                        \
  template void rope(T*, const float*, int64_t, int64_t, int64_t, int64_t, int64_t, bool);             \
  template void swiglu_forward(T*, const T*, int64_t, int64_t);                                        \
  template void swiglu_backward(T*, const T*, const T*, int64_t, int64_t);                             \
  template void add(T*, const T*, const T*, int64_t);                                                  \
  template double cross_entropy(T*, const float*, const int32_t*, int64_t, int64_t, float);
SHARDRUN_INSTANTIATE(float)
SHARDRUN_INSTANTIATE(Bf16)
#undef SHARDRUN_INSTANTIATE

}  // namespace shardrun::kernels
