// Llama: forward and explicit backward of a Llama-2-family decoder, one block at a time.
//
// The sharding engine owns parameters and gradients; the model owns activations. A model is a list of blocks:
//   block 0            token embedding
//   block 1 … layers   attention + SwiGLU, each with its two RMSNorms
//   block layers+1     final RMSNorm + output head + cross-entropy
// The parameters of one block are one flat buffer (BlockLayout), gathered before use and released after.
// One micro-step:  set_batch; forward(0 … last); loss(); backward(last … 0).
//
// Shapes: B micro-batch, T sequence length, C hidden, H heads, K kv heads, D = C/H, F ffn, V vocabulary, N =
// B·T. Thread rule: thread-compatible; the ops inside use the OpenMP threads of the calling thread. Source:
// Touvron et al. 2023 (Llama 2); layout and numerics follow Hugging Face LlamaForCausalLM.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/kernels/ops.h"

namespace shardrun::model {

struct LlamaConfig {
  int layers = 0, hidden = 0, heads = 0, kv_heads = 0, ffn = 0, vocab = 0;
  double rope_theta = 10000.0;
  double norm_epsilon = 1e-5;
};

// One tensor inside a block's flat buffer.
struct ParameterInfo {
  std::string name;            // Hugging Face name, e.g. "model.layers.3.self_attn.q_proj.weight"
  std::vector<int64_t> shape;  // row-major; linear weights are (out, in)
  int64_t offset = 0;          // elements from the start of the block
  bool weight_decay = true;    // false for norms
  double init_stddev = 0.0;    // of a zero-mean normal; 0 means "all ones" (norms)

  int64_t elements() const;
};

struct BlockLayout {
  std::string name;  // "embedding", "layer 3", "head"
  std::vector<ParameterInfo> parameters;
  int64_t elements = 0;  // sum; no padding here, the sharding engine pads
};

// kInvalid with what and the mend: hidden % heads, heads % kv_heads, odd head size, non-positive sizes.
base::Result<void> check(const LlamaConfig& config);
std::vector<BlockLayout> block_layouts(const LlamaConfig& config);
// Model FLOPs of one token, forward and backward, causal credit: 6·(matmul parameters) + 6·layers·C·T.
double flops_per_token(const LlamaConfig& config, int sequence_length);

class Llama {
 public:
  // Bytes of activations and scratch that the model will use; it allocates exactly these, once, in create().
  static int64_t activation_bytes(const LlamaConfig& config, kernels::DType compute, int micro_batch,
                                  int sequence_length);
  static base::Result<std::unique_ptr<Llama>> create(const LlamaConfig& config, kernels::DType compute,
                                                     int micro_batch, int sequence_length);
  ~Llama();

  int block_count() const;

  // tokens, targets: (B,T) int32 in [0,V); a target of -1 carries no loss. `loss_scale` multiplies the
  // gradient: 1/(tokens that carry loss in the whole global batch) makes the sum over ranks and micro-steps
  // the mean.
  void set_batch(std::span<const int32_t> tokens, std::span<const int32_t> targets, float loss_scale);

  // `parameters`: block's flat buffer in the compute dtype.
  void forward(int block, std::span<const std::byte> parameters);
  // Sum of the cross-entropies of the micro-batch in nats (fp64) after forward(last). `tokens` carry loss.
  struct Loss {
    double sum = 0.0;
    int64_t tokens = 0;
  };
  Loss loss() const;
  // Writes (does not add) the block's flat fp32 gradient. Calls run from the last block to block 0.
  void backward(int block, std::span<const std::byte> parameters, std::span<float> gradient);

  struct State;  // the typed model behind this interface; defined in llama.cpp

 private:
  explicit Llama(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace shardrun::model
