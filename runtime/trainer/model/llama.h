// Llama: forward and explicit backward of a Llama-2-family decoder, one block at a time.
//
// Blocks (model.h says what a block is):
//   block 0            token embedding
//   block 1 … layers   attention + SwiGLU, each with its two RMSNorms
//   block layers+1     final RMSNorm + output head + cross-entropy
// With tied embeddings block 0 also holds the final RMSNorm and is visited first and last.
//
// In a tensor group each rank holds equal slices of every matrix: rows of q, k, v, gate, up, the embedding and the head;
// columns of the two projections back into the residual stream. Norms are whole on every rank (model.h, split_dimension).
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
#include "runtime/trainer/kernels/workspace.h"
#include "runtime/trainer/model/model.h"
#include "runtime/trainer/model/options.h"

namespace shardrun::model {

struct LlamaConfig {
  int layers = 0, hidden = 0, heads = 0, kv_heads = 0, ffn = 0, vocab = 0;
  double rope_theta = 10000.0;
  double norm_epsilon = 1e-5;
  bool tied_embeddings = false;  // the head uses the embedding's matrix
};

// kInvalid with what and the mend: hidden % heads, heads % kv_heads, odd head size, non-positive sizes.
base::Result<void> check(const LlamaConfig& config);
// Of rank `tensor_rank` of a group of `tensor_parallel`, which divides heads, kv_heads, ffn and vocab.
std::vector<BlockLayout> block_layouts(const LlamaConfig& config, int tensor_rank = 0,
                                       int tensor_parallel = 1);
// Model FLOPs of one token, forward and backward: 6·(matmul parameters) + 6·layers·C·T with causal credit, 12·layers·C·T
// without. Keys and values that heads share save products, but no scores.
double flops_per_token(const LlamaConfig& config, int sequence_length,
                       AttentionCredit credit = AttentionCredit::kCausal);

class Llama : public Model {
 public:
  // Of one rank of a tensor group; options.tensor is not looked at.
  static ActivationBytes activation_bytes(const LlamaConfig& config, const ModelOptions& options,
                                          int tensor_parallel = 1);
  // What it will call of kernels that takes memory beside activations.
  static kernels::OpList ops(const LlamaConfig& config, const ModelOptions& options, int tensor_parallel = 1);
  // kInvalid as check() says, or for a tensor group that does not divide the model; kIo without that much memory.
  static Result<std::unique_ptr<Llama>> create(const LlamaConfig& config, const ModelOptions& options);
};

}  // namespace shardrun::model
