// Where each parameter of a Llama's layer lies in its block.
//
// Internal to runtime/trainer/model. Thread rule: plain values.
#pragma once

#include <cstdint>

#include "runtime/plan/model/llama_sizes.h"

namespace shardrun::model {

// Offsets inside a layer's flat buffer. q, k, v lie side by side, and so do gate and up: one product each.
struct LayerOffsets {
  explicit LayerOffsets(const plan::LlamaSizes& s)
      : norm1(0),
        qkv(s.C),
        qkv_bias(qkv + s.QKV * s.C),
        head_norms(qkv_bias + (s.bias ? s.QKV : 0)),
        out(head_norms + (s.head_norms ? 2 * s.D : 0)),
        norm2(out + s.C * s.HD),
        gate_up(norm2 + s.C),
        down(gate_up + 2 * s.F * s.C) {}
  // Of a layer whose feed-forward are experts: behind it is nothing.
  int64_t router() const { return gate_up; }

  int64_t norm1, qkv, qkv_bias, head_norms;  // behind qkv two that a family may lack
  int64_t out, norm2, gate_up, down;
};

}  // namespace shardrun::model
