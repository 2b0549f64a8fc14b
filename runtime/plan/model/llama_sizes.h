// LlamaSizes: the sizes by which a Llama's activations and ops are counted, on one rank.
//
// Thread rule: plain values.
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/plan/model/adapters.h"
#include "runtime/plan/model/expert_buffers.h"
#include "runtime/plan/model/llama.h"

namespace shardrun::plan {

// The legend of llama.h as numbers. Heads, feed-forward and vocabulary are this rank's slice of a tensor group.
struct LlamaSizes {
  LlamaSizes(const LlamaConfig& config, const ModelRun& run, int tensor_parallel)
      : ranks(tensor_parallel),
        B(run.micro_batch),
        T(run.sequence_length),
        W(T / run.context_parallel),
        N(B * W),
        R(N / ranks),
        C(config.hidden),
        D(config.head_elements()),
        H(config.heads / ranks),
        K(config.kv_heads / ranks),
        F(config.ffn / ranks),
        V(config.vocab / ranks),
        L(layers_of(config, run.stage)),
        HD(H * D),
        QKV((H + 2 * K) * D),
        // A window that reaches over the sequence hides nothing.
        window(config.window < T ? config.window : 0),
        bias(config.qkv_bias),
        head_norms(config.head_norms),
        lora_rank(config.lora.rank),
        adapted(widest_adapter(config)),
        experts(config.experts, N, config.expert_parallel, config.hidden, config.ffn),
        dense_F(experts.E > 0 ? 0 : F),
        epsilon(static_cast<float>(config.norm_epsilon)),
        checkpointing(run.checkpointing),
        held(run.stage.is_whole() ? L : run.stage.held),
        slots(layer_slots(held, run)),
        has_head(run.stage.has_head),
        sharers(run.context_parallel),
        fp8(run.fp8),
        accumulates(run.accumulates) {
    // 128 MiB of fp32, or 1 GiB on a GPU, whose products want whole tiles of rows. A CPU's products pack the matrix for each
    // chunk, and add up its gradient, which is a product as deep as a chunk.
    const bool on_gpu = run.device == DeviceKind::kGpu;
    const int64_t elements = int64_t{1} << (on_gpu ? 28 : 25), unit = on_gpu ? 128 : 32;
    const int64_t rows = elements / std::max<int64_t>(1, V) / unit * unit;
    chunk = std::min(N, std::max(int64_t{64}, rows));
  }
  int64_t ranks;  // of the tensor group
  int64_t B, T;
  int64_t W, N;                          // tokens of each sequence, and of all, that this rank has
  int64_t R;                             // rows of the residual stream that this rank owns
  int64_t C, D, H, K, F, V, L, HD, QKV;  // L: layers that this rank's stage has
  int64_t window;                        // tokens that a token sees; 0: all before it
  bool bias, head_norms;
  int64_t lora_rank, adapted;  // of adapters, and their widest result; 0: all weights are trained
  ExpertSizes experts;
  int64_t dense_F;  // of a feed-forward of all tokens; 0: there are experts
  float epsilon;
  Checkpointing checkpointing;
  int64_t held;   // layers' activations that are there at once
  int64_t slots;  // pieces of `saved`: one for each of those, unless they wait elsewhere
  bool has_head;
  int64_t sharers;  // ranks that share each sequence
  bool fp8, accumulates;
  int64_t chunk;  // rows of logits that exist at once

 private:
  static int64_t layers_of(const LlamaConfig& config, const StageOfModel& stage) {
    if (stage.is_whole()) return config.layers;
    int64_t layers = 0;
    for (const LayerRange& chunk : stage.chunks) layers += chunk.count;
    return layers;
  }
};

}  // namespace shardrun::plan
