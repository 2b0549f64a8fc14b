// The one allocation behind a model's activations, and where each tensor lies in it.
//
// Internal to runtime/model. A Buffers over nullptr only counts bytes; the same code over memory hands out
// the pointers, so the plan and the use cannot differ. Thread rule: thread-compatible.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/model/llama.h"

namespace shardrun::model {

// The legend of llama.h as numbers.
struct Sizes {
  Sizes(const LlamaConfig& config, int micro_batch, int sequence_length)
      : B(micro_batch),
        T(sequence_length),
        N(B * T),
        C(config.hidden),
        H(config.heads),
        K(config.kv_heads),
        D(C / std::max<int64_t>(1, H)),
        F(config.ffn),
        V(config.vocab),
        L(config.layers),
        HD(H * D),
        QKV((H + 2 * K) * D),
        epsilon(static_cast<float>(config.norm_epsilon)) {
    constexpr int64_t kLogitElements = int64_t{1} << 23;  // 32 MiB of fp32: few chunks, bounded memory
    chunk = std::min(N, std::max<int64_t>(64, kLogitElements / std::max<int64_t>(1, V)));
  }
  int64_t B, T, N, C, H, K, D, F, V, L, HD, QKV;
  float epsilon;
  int64_t chunk;  // rows of logits that exist at once
};

// Owned, page-aligned, zero memory.
class Memory {
 public:
  static base::Result<Memory> create(int64_t bytes);
  Memory(Memory&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  Memory& operator=(Memory&&) = delete;
  ~Memory();
  std::byte* data() const { return data_; }

 private:
  Memory(std::byte* data, int64_t bytes) : data_(data), bytes_(bytes) {}
  std::byte* data_;
  int64_t bytes_;
};

// What the backward of one layer needs from its forward.
template <typename T>
struct LayerActivations {
  float *rrms1, *rrms2;  // (N)
  float* lse;            // (B,H,T)
  T* normed1;            // (N,C)
  T* qkv;                // (N,QKV), rotated
  T* attention;          // (N,H·D)
  T* middle;             // (N,C): the residual stream between attention and feed-forward
  T* normed2;            // (N,C)
  T* gate_up;            // (N,2F)
  T* activated;          // (N,F)
};

template <typename T>
struct Buffers {
  Buffers(const Sizes& s, std::byte* memory) : memory_(memory) {
    take(tokens, s.N);
    take(targets, s.N);
    take(rope, s.T * s.D);
    take(head_rrms, s.N);
    take(logits, s.chunk * s.V);
    stream.resize(static_cast<size_t>(s.L) + 1);
    for (T*& level : stream) take(level, s.N * s.C);
    layers.resize(static_cast<size_t>(s.L));
    for (LayerActivations<T>& layer : layers) {
      take(layer.rrms1, s.N);
      take(layer.rrms2, s.N);
      take(layer.lse, s.B * s.H * s.T);
      take(layer.normed1, s.N * s.C);
      take(layer.qkv, s.N * s.QKV);
      take(layer.attention, s.N * s.HD);
      take(layer.middle, s.N * s.C);
      take(layer.normed2, s.N * s.C);
      take(layer.gate_up, s.N * 2 * s.F);
      take(layer.activated, s.N * s.F);
    }
    take(head_normed, s.N * s.C);
    take(dstream, s.N * s.C);
    take(narrow, s.N * std::max({s.C, s.F, s.HD}));
    take(wide, s.N * std::max({2 * s.F, s.QKV, s.C}));
    if constexpr (sizeof(T) == sizeof(float)) {
      dlogits = logits;  // in place
    } else {
      take(dlogits, s.chunk * s.V);
    }
  }

  int32_t *tokens = nullptr, *targets = nullptr;
  float *rope = nullptr, *head_rrms = nullptr, *logits = nullptr;
  std::vector<T*> stream;  // the residual stream before each layer and after the last
  std::vector<LayerActivations<T>> layers;
  T *head_normed = nullptr, *dstream = nullptr, *narrow = nullptr, *wide = nullptr, *dlogits = nullptr;
  int64_t bytes = 0;

 private:
  template <typename U>
  void take(U*& pointer, int64_t count) {
    constexpr int64_t kAlignment = 64;
    pointer = memory_ == nullptr ? nullptr : reinterpret_cast<U*>(memory_ + bytes);
    bytes += (count * static_cast<int64_t>(sizeof(U)) + kAlignment - 1) / kAlignment * kAlignment;
  }
  std::byte* memory_;
};

}  // namespace shardrun::model
