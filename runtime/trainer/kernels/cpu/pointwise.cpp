// Ops that treat every element by itself, in fp32 (kernels/cpu/vector.h).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "runtime/trainer/kernels/cpu/ops.h"
#include "runtime/trainer/kernels/cpu/parallel.h"
#include "runtime/trainer/kernels/cpu/vector.h"

namespace shardrun::kernels {
namespace {

constexpr int64_t kSmallestRows = 16;  // fewer are not worth a thread

std::vector<float> scratch(int64_t count) {
  return std::vector<float>(count);
}

template <typename T>
class CpuPointwise final : public PointwiseOps<T> {
 public:
  void swiglu_forward(T* y, const T* gate_up, int64_t N, int64_t F) const override {
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

  void swiglu_backward(T* dgate_up, const T* dy, const T* gate_up, int64_t N, int64_t F) const override {
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

  void gelu_forward(T* y, const T* x, int64_t count) const override {
    for_chunks(count, [&](int64_t at, int64_t size) {
      float in[kChunk], result[kChunk];
      float* out = vector::target(y + at, result);
      vector::gelu(out, vector::load(x + at, in, size), size);
      vector::store(y + at, out, size);
    });
  }

  void gelu_backward(T* dx, const T* dy, const T* x, int64_t count) const override {
    for_chunks(count, [&](int64_t at, int64_t size) {
      float in[kChunk], result[kChunk];
      float* out = vector::target(dx + at, result);
      vector::gelu_gradient(out, vector::load(dy + at, result, size), vector::load(x + at, in, size), size);
      vector::store(dx + at, out, size);
    });
  }

  void tanh_forward(T* y, const T* x, int64_t count) const override {
    for_chunks(count, [&](int64_t at, int64_t size) {
      float wide[kChunk];
      const float* in = vector::load(x + at, wide, size);
      float* out = vector::target(y + at, wide);
      for (int64_t i = 0; i < size; ++i) out[i] = std::tanh(in[i]);
      vector::store(y + at, out, size);
    });
  }

  void tanh_backward(T* dx, const T* dy, const T* y, int64_t count) const override {
    for_chunks(count, [&](int64_t at, int64_t size) {
      float wide[kChunk], values[kChunk];
      const float* grad = vector::load(dy + at, wide, size);
      const float* value = vector::load(y + at, values, size);
      float* out = vector::target(dx + at, wide);
      for (int64_t i = 0; i < size; ++i) out[i] = grad[i] * (1.0f - value[i] * value[i]);
      vector::store(dx + at, out, size);
    });
  }

  void add(T* y, const T* a, const T* b, int64_t count) const override {
    for_chunks(count, [&](int64_t at, int64_t size) {
      float left[kChunk], right[kChunk];
      float* out = vector::target(y + at, left);
      vector::add(out, vector::load(a + at, left, size), vector::load(b + at, right, size), size);
      vector::store(y + at, out, size);
    });
  }

  void add_to_columns(T* y, const T* x, float scale, int64_t N, int64_t C, int64_t stride) const override {
    parallel_for(N, kSmallestRows, [&](int64_t begin, int64_t end) {
      std::vector<float> buffers = scratch(2 * C);
      for (int64_t n = begin; n < end; ++n) {
        T* const row = y + n * stride;
        float* out = vector::target(row, buffers.data());
        if constexpr (!std::is_same_v<T, float>) vector::load(row, out, C);
        vector::add_scaled(out, scale, vector::load(x + n * C, buffers.data() + C, C), C);
        vector::store(row, out, C);
      }
    });
  }

  void take_columns(T* y, const T* x, float scale, int64_t N, int64_t C, int64_t stride) const override {
    parallel_for(N, kSmallestRows, [&](int64_t begin, int64_t end) {
      std::vector<float> buffers = scratch(C);
      for (int64_t n = begin; n < end; ++n) {
        float* out = vector::target(y + n * C, buffers.data());
        const float* in = vector::load(x + n * stride, buffers.data(), C);
        if (in != out) std::copy_n(in, C, out);
        vector::scale(out, scale, C);
        vector::store(y + n * C, out, C);
      }
    });
  }

  void from_fp32(T* out, const float* in, int64_t count) const override {
    if constexpr (std::is_same_v<T, float>) {
      std::memcpy(out, in, static_cast<size_t>(count) * sizeof(float));
    } else {
      fp32_to_bf16(std::span(in, count), std::span(out, count));
    }
  }
};

}  // namespace

template <typename T>
const PointwiseOps<T>& cpu_pointwise() {
  static const CpuPointwise<T> ops;
  return ops;
}
template const PointwiseOps<float>& cpu_pointwise();
template const PointwiseOps<Bf16>& cpu_pointwise();

}  // namespace shardrun::kernels
