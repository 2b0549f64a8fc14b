// Llama: forward and explicit backward of a Llama-2-family decoder, one block at a time.
//
// Blocks (model.h says what a block is):
//   block 0            token embedding
//   block 1 … layers   attention + SwiGLU, each with its two RMSNorms
//   block layers+1     final RMSNorm + output head + cross-entropy
//
// Shapes: B micro-batch, T sequence length, C hidden, H heads, K kv heads, D = C/H, F ffn, V vocabulary, N = B·T.
// Thread rule: as model.h.
// Source: Touvron et al. 2023 (Llama 2); layout and numerics follow Hugging Face LlamaForCausalLM.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/kernels/ops.h"
#include "runtime/model/model.h"

namespace shardrun::model {

struct LlamaConfig {
  int layers = 0, hidden = 0, heads = 0, kv_heads = 0, ffn = 0, vocab = 0;
  double rope_theta = 10000.0;
  double norm_epsilon = 1e-5;
};

// kInvalid with what and the mend: hidden % heads, heads % kv_heads, odd head size, non-positive sizes.
base::Result<void> check(const LlamaConfig& config);
std::vector<BlockLayout> block_layouts(const LlamaConfig& config);
// Model FLOPs of one token, forward and backward, causal credit: 6·(matmul parameters) + 6·layers·C·T.
double flops_per_token(const LlamaConfig& config, int sequence_length);

class Llama : public Model {
 public:
  // Bytes of activations and scratch that the model will use; it allocates exactly these, once, in create().
  static int64_t activation_bytes(const LlamaConfig& config, kernels::DType compute, int micro_batch,
                                  int sequence_length);
  // kInvalid as check() says; kIo without that much memory.
  static Result<std::unique_ptr<Llama>> create(const LlamaConfig& config, kernels::DType compute,
                                               int micro_batch, int sequence_length);
};

}  // namespace shardrun::model
