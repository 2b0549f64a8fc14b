// What a Llama consists of and holds, by arithmetic: a decoder of the family of Llama 2, with what later families have.
//
// Blocks (block_layout.h says what a block is):
//   block 0            token embedding
//   block 1 … layers   attention + SwiGLU, each with its two RMSNorms
//   with experts       two blocks a layer: attention, both norms and the router; then the experts, one behind the other
//   block layers+1     final RMSNorm + output head + cross-entropy
// With tied embeddings block 0 also holds the final RMSNorm and is visited first and last.
//
// In a tensor group each rank holds equal slices of every matrix: rows of q, k, v, gate, up, the embedding and the head;
// columns of the two projections back into the residual stream. Norms are whole on every rank (split_dimension).
// `tensor_rank` is one of a group of `tensor_parallel`, which divides heads, kv_heads, ffn and vocab.
//
// Families differ by traits of LlamaConfig: Llama 3.1 and 3.2 by their rotary scaling, Mistral by its window, Qwen 2 by biases of q, k
// and v, Qwen 3 by a norm of each query and key head, whose size is apart from hidden / heads, Mixtral and Qwen 3 MoE by experts in
// the place of the feed-forward.
//
// Every architecture has these functions for its configuration; runtime/plan/model/network.h calls them.
// Thread rule: plain values and pure functions.
// Source: Touvron et al. 2023 (Llama 2); layout and numerics follow Hugging Face's LlamaForCausalLM, MistralForCausalLM,
// Qwen2ForCausalLM, Qwen3ForCausalLM, MixtralForCausalLM and Qwen3MoeForCausalLM.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/plan/model/block_layout.h"
#include "runtime/plan/model/ops.h"
#include "runtime/plan/model/run.h"
#include "runtime/plan/model/shape.h"
#include "runtime/plan/pipeline.h"
#include "runtime/plan/utilization.h"
#include "runtime/spec/lora_spec.h"
#include "runtime/spec/model_spec.h"

namespace shardrun::plan {

struct LlamaConfig {
  static constexpr const char* kTrainer = "llama";  // its name in spec::kArchitectures

  int layers = 0, hidden = 0, heads = 0, kv_heads = 0, ffn = 0, vocab = 0;
  double rope_theta = 10000.0;
  double norm_epsilon = 1e-5;
  bool tied_embeddings = false;  // the head uses the embedding's matrix
  int head_size = 0;             // 0: hidden / heads
  bool qkv_bias = false, head_norms = false;
  int window = 0;         // tokens that a token sees, itself among them; 0: all
  int max_positions = 0;  // the length that it is made for, which others are told; 0: nobody said
  spec::RotaryScaling rope{};
  spec::ExpertSpec experts{};
  int expert_parallel = 1;  // ranks that share the experts of each layer
  spec::LoraSpec lora{};    // what is trained beside frozen weights (adapters.h)

  static LlamaConfig of(const spec::ModelSpec& model);
  int head_elements() const { return head_size > 0 || heads < 1 ? head_size : hidden / heads; }
};

// kInvalid with what and the mend: hidden % heads, heads % kv_heads, odd head size, non-positive sizes, traits of several families.
base::Result<void> check(const LlamaConfig& config);
ModelShape shape_of(const LlamaConfig& config);
// Returns the blocks of the model itself; with `lora` all of them are frozen.
std::vector<BlockLayout> block_layouts(const LlamaConfig& config, int tensor_rank = 0,
                                       int tensor_parallel = 1);
// Model FLOPs of one token, forward and backward: 6·(matmul parameters), 4· of frozen ones, of experts those that
// compute it, + 6·layers·H·D·T with causal credit,
// 12·layers·H·D·T without; a window is no credit. Keys and values that heads share save products, but no scores.
FlopsPerToken flops_per_token(const LlamaConfig& config, int sequence_length);
// Returns what a stage of a pipeline has of the model, which has no experts, in steps of `micro_steps`: stages are cut so that
// the costliest computes as little as it can.
StageOfModel stage_of(const LlamaConfig& config, const Stage& stage, int sequence_length,
                      int64_t micro_steps);
// Returns how many tokens of a sequence its batches give a target, at most.
int64_t most_targets(const LlamaConfig& config, int sequence_length);
ActivationBytes activation_bytes(const LlamaConfig& config, const ModelRun& run, int tensor_parallel = 1);
// Returns what a rank will call of ops that take memory beside activations.
OpList ops(const LlamaConfig& config, const ModelRun& run, int tensor_parallel = 1);
// Returns the configuration as transformers has it for the family that the traits say: one line of JSON with sorted keys.
std::string hf_config(const LlamaConfig& config);

}  // namespace shardrun::plan
