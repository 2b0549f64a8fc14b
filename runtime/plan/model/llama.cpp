#include "runtime/plan/model/llama.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "runtime/base/json_fields.h"
#include "runtime/plan/model/llama_buffers.h"

namespace shardrun::plan {
namespace {

using base::Code;
using base::Error;

constexpr double kInitStddev = 0.02;  // GPT-2's and Llama's

// Which slice of each matrix a rank holds.
struct Slicing {
  int rank = 0, ranks = 1;
};

// The slice of rank `slicing.rank` along `dimension`, or the whole tensor for -1.
void append(BlockLayout& block, std::string name, std::vector<int64_t> shape, int dimension, double stddev,
            const Slicing& slicing) {
  ParameterInfo parameter{std::move(name), std::move(shape), 0, dimension >= 0, stddev};
  if (dimension >= 0 && slicing.ranks > 1) {
    int64_t& extent = parameter.shape[dimension];
    parameter.full_shape = parameter.shape;
    extent /= slicing.ranks;
    parameter.split_dimension = dimension;
    parameter.split_begin = slicing.rank * extent;
  }
  block.append(std::move(parameter));
}

BlockLayout layer_layout(const LlamaConfig& config, int layer, const Slicing& slicing) {
  const int64_t C = config.hidden, F = config.ffn, D = C / config.heads;
  const int64_t Q = config.heads * D, KV = config.kv_heads * D;
  // Projections back into the residual stream start smaller, so that its variance does not grow with depth.
  const double into_residual = kInitStddev / std::sqrt(2.0 * config.layers);
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  BlockLayout block{fmt::format("layer {}", layer), {}, 0};
  append(block, prefix + "input_layernorm.weight", {C}, -1, 0.0, slicing);
  append(block, prefix + "self_attn.q_proj.weight", {Q, C}, 0, kInitStddev, slicing);
  append(block, prefix + "self_attn.k_proj.weight", {KV, C}, 0, kInitStddev, slicing);
  append(block, prefix + "self_attn.v_proj.weight", {KV, C}, 0, kInitStddev, slicing);
  append(block, prefix + "self_attn.o_proj.weight", {C, Q}, 1, into_residual, slicing);
  append(block, prefix + "post_attention_layernorm.weight", {C}, -1, 0.0, slicing);
  append(block, prefix + "mlp.gate_proj.weight", {F, C}, 0, kInitStddev, slicing);
  append(block, prefix + "mlp.up_proj.weight", {F, C}, 0, kInitStddev, slicing);
  append(block, prefix + "mlp.down_proj.weight", {C, F}, 1, into_residual, slicing);
  return block;
}

// config.json of LlamaForCausalLM.
struct LlamaForCausalLM {
  const LlamaConfig& config;
};
void fields(auto& visit, const LlamaForCausalLM& published) {
  const LlamaConfig& config = published.config;
  visit("architectures", std::vector<std::string>{"LlamaForCausalLM"});
  visit("attention_bias", false);
  visit("head_dim", config.hidden / config.heads);
  visit("hidden_act", std::string("silu"));
  visit("hidden_size", config.hidden);
  visit("intermediate_size", config.ffn);
  visit("mlp_bias", false);
  visit("model_type", std::string("llama"));
  visit("num_attention_heads", config.heads);
  visit("num_hidden_layers", config.layers);
  visit("num_key_value_heads", config.kv_heads);
  visit("rms_norm_eps", config.norm_epsilon);
  visit("rope_theta", config.rope_theta);
  visit("tie_word_embeddings", config.tied_embeddings);
  visit("vocab_size", config.vocab);
}

}  // namespace

LlamaConfig LlamaConfig::of(const spec::ModelSpec& model) {
  return {model.layers, model.hidden,     model.heads,        model.kv_heads,       model.ffn,
          model.vocab,  model.rope_theta, model.norm_epsilon, model.tied_embeddings};
}

base::Result<void> check(const LlamaConfig& config) {
  if (config.layers < 1 || config.hidden < 1 || config.heads < 1 || config.kv_heads < 1 || config.ffn < 1 ||
      config.vocab < 1) {
    return Error(Code::kInvalid, "a Llama's layers, hidden, heads, kv_heads, ffn and vocab must be positive");
  }
  if (config.hidden % config.heads != 0 || config.hidden / config.heads % 2 != 0) {
    return Error(Code::kInvalid,
                 fmt::format("hidden {} over {} heads gives no even head size; make hidden a multiple "
                             "of {}",
                             config.hidden, config.heads, 2 * config.heads));
  }
  if (config.heads % config.kv_heads != 0) {
    return Error(Code::kInvalid,
                 fmt::format("{} heads cannot share {} kv_heads evenly; make heads a multiple", config.heads,
                             config.kv_heads));
  }
  if (config.hidden / config.heads > 1024) {
    return Error(Code::kInvalid,
                 fmt::format("head size {} is above 1024; use more heads", config.hidden / config.heads));
  }
  return {};
}

std::vector<BlockLayout> block_layouts(const LlamaConfig& config, int tensor_rank, int tensor_parallel) {
  const Slicing slicing{tensor_rank, tensor_parallel};
  std::vector<BlockLayout> blocks;
  BlockLayout embedding{"embedding", {}, 0};
  append(embedding, "model.embed_tokens.weight", {config.vocab, config.hidden}, 0, kInitStddev, slicing);
  BlockLayout head{"head", {}, 0};
  append(config.tied_embeddings ? embedding : head, "model.norm.weight", {config.hidden}, -1, 0.0, slicing);
  blocks.push_back(std::move(embedding));
  for (int layer = 0; layer < config.layers; ++layer) blocks.push_back(layer_layout(config, layer, slicing));
  if (config.tied_embeddings) return blocks;
  append(head, "lm_head.weight", {config.vocab, config.hidden}, 0, kInitStddev, slicing);
  blocks.push_back(std::move(head));
  return blocks;
}

ModelShape shape_of(const LlamaConfig& config) {
  ModelShape shape;
  shape.layers = config.layers;
  shape.hidden = config.hidden;
  shape.kv_width = config.hidden / config.heads * config.kv_heads;
  shape.ffn = config.ffn;
  shape.vocab = config.vocab;
  shape.tied = config.tied_embeddings;
  shape.architecture = &spec::architecture_of(LlamaConfig::kTrainer);
  return shape;
}

FlopsPerToken flops_per_token(const LlamaConfig& config, int sequence_length) {
  double products = 0.0;
  for (const BlockLayout& block : block_layouts(config)) {
    if (block.name == "embedding" && !config.tied_embeddings) continue;  // a table look-up
    for (const ParameterInfo& parameter : block.parameters) {
      if (parameter.shape.size() == 2) products += static_cast<double>(parameter.elements());
    }
  }
  const auto with_scores = [&](double credit) {
    return 6.0 * products + credit * config.layers * static_cast<double>(config.hidden) * sequence_length;
  };
  return {.causal = with_scores(6.0), .full = with_scores(12.0)};
}

int64_t most_targets(const LlamaConfig& /*config*/, int sequence_length) {
  return sequence_length;
}

ActivationBytes activation_bytes(const LlamaConfig& config, const ModelRun& run, int tensor_parallel) {
  const LlamaSizes sizes(config, run, tensor_parallel);
  return run.compute == DType::kFp32
             ? planned_activations(LlamaBuffers<float>(sizes, nullptr, nullptr), run)
             : planned_activations(LlamaBuffers<uint16_t>(sizes, nullptr, nullptr), run);
}

OpList ops(const LlamaConfig& config, const ModelRun& run, int tensor_parallel) {
  using Op = LinearCall::Op;
  const LlamaSizes s(config, run, tensor_parallel);
  const bool sums = tensor_parallel > 1 && run.compute != DType::kFp32;  // over ranks, in fp32
  const Op back = sums ? Op::kForwardFp32 : Op::kForward;                // into the residual stream
  const Op input = sums ? Op::kBackwardInputFp32 : Op::kBackwardInput;
  const Op head_input = tensor_parallel > 1 ? Op::kBackwardInputFp32 : Op::kBackwardInput;
  OpList list{run.compute, {}, {s.B, s.T, s.H, s.K, s.D}};
  list.linears = {{Op::kForward, s.N, s.C, s.QKV},          {back, s.N, s.HD, s.C},
                  {Op::kForward, s.N, s.C, 2 * s.F},        {back, s.N, s.F, s.C},
                  {Op::kBackwardWeight, s.N, s.F, s.C},     {Op::kBackwardInput, s.N, s.F, s.C},
                  {Op::kBackwardWeight, s.N, s.C, 2 * s.F}, {input, s.N, s.C, 2 * s.F},
                  {Op::kBackwardWeight, s.N, s.HD, s.C},    {Op::kBackwardInput, s.N, s.HD, s.C},
                  {Op::kBackwardWeight, s.N, s.C, s.QKV},   {input, s.N, s.C, s.QKV}};
  for (int64_t row = 0; row < s.N; row += s.chunk) {
    const int64_t rows = std::min(s.chunk, s.N - row);
    list.linears.push_back({Op::kForwardFp32, rows, s.C, s.V});
    list.linears.push_back({head_input, rows, s.C, s.V});
    list.linears.push_back({Op::kBackwardWeight, rows, s.C, s.V, /*bias=*/false, /*accumulate=*/row > 0});
  }
  if (run.accumulates) list.also_accumulate();
  return list;
}

std::string hf_config(const LlamaConfig& config) {
  return base::JsonWriter(base::kJsonLine, 0).text_of(LlamaForCausalLM{config}, {});
}

}  // namespace shardrun::plan
