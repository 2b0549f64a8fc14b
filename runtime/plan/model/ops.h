// What a model asks of ops that take memory beside their arguments: its matrix products and its attention, by size.
//
// Names of sizes are those of runtime/trainer/kernels/ops.h. Thread rule: plain values and pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/base/compute.h"
#include "runtime/plan/context.h"

namespace shardrun::plan {

using base::DType;

// B sequences of T tokens; H heads of size D, which share K key/value heads.
struct AttentionShape {
  int64_t B, T, H, K, D;
  ContextPlace context{};  // of a rank that has some tokens of each sequence
  int64_t qkv_stride() const { return (H + 2 * K) * D; }
  int64_t own_tokens() const { return context.own_tokens(T); }
  // Between the keys of two tokens, and before a token's first one: beside queries, or, of all ranks' tokens, keys and values alone.
  int64_t kv_stride() const { return context.ranks == 1 ? qkv_stride() : 2 * K * D; }
  int64_t first_key() const { return context.ranks == 1 ? H * D : 0; }
};

// One linear_* function of kernels/ops.h with its sizes: N rows, C inputs, O outputs.
struct LinearCall {
  enum class Op { kForward, kForwardFp32, kBackwardInput, kBackwardInputFp32, kBackwardWeight };
  Op op = Op::kForward;
  int64_t N = 0, C = 0, O = 0;
  bool bias = false, accumulate = false;
};

struct OpList {
  DType dtype = DType::kFp32;
  std::vector<LinearCall> linears;
  AttentionShape attention{};  // forward and backward; B = 0: none

  // Lists every gradient of weights also as one that is added to another.
  void also_accumulate() {
    for (size_t i = 0, count = linears.size(); i < count; ++i) {
      if (linears[i].op != LinearCall::Op::kBackwardWeight) continue;
      linears.push_back(linears[i]);
      linears.back().accumulate = true;
    }
  }
};

// The matrix product that a call is: c (M,N) = op(a) (M,K) · op(b) (K,N), plus bias (N) of the operands' type.
struct Product {
  int64_t M, K, N;
  bool a_transposed, b_transposed;
  bool is_narrow;  // c is of the operands' type; otherwise of fp32
  bool bias, accumulate;
};

constexpr Product product_of(const LinearCall& call) {
  using Op = LinearCall::Op;
  const auto [op, N, C, O, bias, accumulate] = call;
  switch (op) {
    case Op::kForward:
    case Op::kForwardFp32:
      return {N, C, O, false, true, op == Op::kForward, bias, false};
    case Op::kBackwardInput:
    case Op::kBackwardInputFp32:
      return {N, O, C, false, false, op == Op::kBackwardInput, false, accumulate};
    case Op::kBackwardWeight:
      break;
  }
  return {O, N, C, true, false, false, false, accumulate};
}

}  // namespace shardrun::plan
