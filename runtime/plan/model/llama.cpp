#include "runtime/plan/model/llama.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "runtime/base/json_fields.h"
#include "runtime/plan/model/adapters.h"
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

// Adds the slice of rank `slicing.rank` along `dimension`, or the whole tensor for -1.
void append(BlockLayout& block, ParameterInfo parameter, int dimension, const Slicing& slicing) {
  if (dimension >= 0 && slicing.ranks > 1) {
    int64_t& extent = parameter.shape[dimension];
    parameter.full_shape = parameter.shape;
    extent /= slicing.ranks;
    parameter.split_dimension = dimension;
    parameter.split_begin = slicing.rank * extent;
  }
  block.append(std::move(parameter));
}
void append(BlockLayout& block, std::string name, std::vector<int64_t> shape, int dimension, double stddev,
            const Slicing& slicing) {
  append(block, {std::move(name), std::move(shape), 0, dimension >= 0, stddev}, dimension, slicing);
}
// Of one dimension, with one initial value and without decay.
void append_vector(BlockLayout& block, std::string name, int64_t count, int dimension, double value,
                   const Slicing& slicing) {
  append(block, {std::move(name), {count}, 0, false, 0.0, value}, dimension, slicing);
}

struct Family {
  const char *model_type, *architecture;
};
Family family_of(const LlamaConfig& config) {
  if (config.experts.wanted() && config.head_norms) return {"qwen3_moe", "Qwen3MoeForCausalLM"};
  if (config.experts.wanted()) return {"mixtral", "MixtralForCausalLM"};
  if (config.head_norms) return {"qwen3", "Qwen3ForCausalLM"};
  if (config.qkv_bias) return {"qwen2", "Qwen2ForCausalLM"};
  if (config.window > 0) return {"mistral", "MistralForCausalLM"};
  return {"llama", "LlamaForCausalLM"};
}

// As the two families name their parts: of the layer that has experts, and gate, up and down of an expert.
struct ExpertNames {
  const char* part;
  std::array<const char*, 3> matrices;
};
ExpertNames expert_names(const LlamaConfig& config) {
  if (config.head_norms) return {"mlp", {"gate_proj", "up_proj", "down_proj"}};
  return {"block_sparse_moe", {"w1", "w3", "w2"}};
}

// Projections back into the residual stream start smaller, so that its variance does not grow with depth.
double stddev_into_residual(const LlamaConfig& config) {
  return kInitStddev / std::sqrt(2.0 * config.layers);
}

// The experts of a layer, one behind the other: gate, up and down of each.
BlockLayout experts_layout(const LlamaConfig& config, int layer) {
  const int64_t C = config.hidden, F = config.ffn;
  const ExpertNames names = expert_names(config);
  BlockLayout block{fmt::format("layer {} experts", layer), {}, 0, /*stays=*/config.expert_parallel > 1};
  for (int expert = 0; expert < config.experts.count; ++expert) {
    const std::string prefix = fmt::format("model.layers.{}.{}.experts.{}.", layer, names.part, expert);
    const auto name = [&](int matrix) { return prefix + names.matrices[matrix] + ".weight"; };
    block.append({name(0), {F, C}, 0, true, kInitStddev});
    block.append({name(1), {F, C}, 0, true, kInitStddev});
    block.append({name(2), {C, F}, 0, true, stddev_into_residual(config)});
  }
  return block;
}

BlockLayout layer_layout(const LlamaConfig& config, int layer, const Slicing& slicing) {
  const int64_t C = config.hidden, F = config.ffn, D = config.head_elements();
  const int64_t Q = config.heads * D, KV = config.kv_heads * D;
  const double into_residual = stddev_into_residual(config);
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  BlockLayout block{fmt::format("layer {}", layer), {}, 0};
  append(block, prefix + "input_layernorm.weight", {C}, -1, 0.0, slicing);
  append(block, prefix + "self_attn.q_proj.weight", {Q, C}, 0, kInitStddev, slicing);
  append(block, prefix + "self_attn.k_proj.weight", {KV, C}, 0, kInitStddev, slicing);
  append(block, prefix + "self_attn.v_proj.weight", {KV, C}, 0, kInitStddev, slicing);
  if (config.qkv_bias) {
    append_vector(block, prefix + "self_attn.q_proj.bias", Q, 0, 0.0, slicing);
    append_vector(block, prefix + "self_attn.k_proj.bias", KV, 0, 0.0, slicing);
    append_vector(block, prefix + "self_attn.v_proj.bias", KV, 0, 0.0, slicing);
  }
  if (config.head_norms) {
    append_vector(block, prefix + "self_attn.q_norm.weight", D, -1, 1.0, slicing);
    append_vector(block, prefix + "self_attn.k_norm.weight", D, -1, 1.0, slicing);
  }
  append(block, prefix + "self_attn.o_proj.weight", {C, Q}, 1, into_residual, slicing);
  append(block, prefix + "post_attention_layernorm.weight", {C}, -1, 0.0, slicing);
  if (config.experts.wanted()) {
    append(block,
           {prefix + expert_names(config).part + ".gate.weight",
            {config.experts.count, C},
            0,
            true,
            kInitStddev},
           -1, slicing);
    return block;
  }
  append(block, prefix + "mlp.gate_proj.weight", {F, C}, 0, kInitStddev, slicing);
  append(block, prefix + "mlp.up_proj.weight", {F, C}, 0, kInitStddev, slicing);
  append(block, prefix + "mlp.down_proj.weight", {C, F}, 1, into_residual, slicing);
  return block;
}

// config.json's rope_scaling.
struct PublishedRope {
  const spec::RotaryScaling& rope;
};
void fields(auto& visit, const PublishedRope& published) {
  const spec::RotaryScaling& rope = published.rope;
  visit("factor", rope.factor);
  if (rope.kind == spec::RopeScaling::kLlama3) {
    visit("high_freq_factor", rope.high_factor);
    visit("low_freq_factor", rope.low_factor);
    visit("original_max_position_embeddings", rope.original_length);
  }
  visit("rope_type", std::string(spec::name_of(rope.kind)));
}

// config.json as transformers has it.
struct Published {
  const LlamaConfig& config;
};
void fields(auto& visit, const Published& published) {
  const LlamaConfig& config = published.config;
  const auto [type, architecture] = family_of(config);
  visit("architectures", std::vector<std::string>{architecture});
  visit("attention_bias", false);
  visit("head_dim", config.head_elements());
  visit("hidden_act", std::string("silu"));
  visit("hidden_size", config.hidden);
  visit("intermediate_size", config.ffn);
  const spec::ExpertSpec& experts = config.experts;
  const bool qwen_experts = experts.wanted() && config.head_norms;
  if (config.max_positions > 0) visit("max_position_embeddings", config.max_positions);
  visit("mlp_bias", false);
  visit("model_type", std::string(type));
  if (qwen_experts) visit("moe_intermediate_size", config.ffn);
  if (qwen_experts) visit("norm_topk_prob", experts.normalize);
  visit("num_attention_heads", config.heads);
  if (qwen_experts) visit("num_experts", experts.count);
  if (experts.wanted()) visit("num_experts_per_tok", experts.per_token);
  visit("num_hidden_layers", config.layers);
  visit("num_key_value_heads", config.kv_heads);
  if (experts.wanted() && !qwen_experts) visit("num_local_experts", experts.count);
  visit("rms_norm_eps", config.norm_epsilon);
  if (config.rope.kind != spec::RopeScaling::kNone) visit("rope_scaling", PublishedRope{config.rope});
  visit("rope_theta", config.rope_theta);
  if (experts.wanted()) visit("router_aux_loss_coef", experts.balance);
  if (config.window > 0) visit("sliding_window", config.window);
  visit("tie_word_embeddings", config.tied_embeddings);
  visit("vocab_size", config.vocab);
}

// Those of the router, and of an expert's rows in pieces of every size that there may be.
void add_expert_products(OpList& list, const LlamaSizes& s) {
  using Op = LinearCall::Op;
  list.linears.push_back({Op::kForwardFp32, s.N, s.C, s.experts.E});
  list.linears.push_back({Op::kBackwardWeight, s.N, s.C, s.experts.E});
  list.linears.push_back({Op::kBackwardInput, s.N, s.C, s.experts.E, /*bias=*/false, /*accumulate=*/true});
  for (int64_t rows = kExpertRows; rows <= s.experts.most_rows(); rows *= 2) {
    const LinearCall calls[] = {
        {Op::kForward, rows, s.C, 2 * s.F},        {Op::kForward, rows, s.F, s.C},
        {Op::kBackwardInput, rows, s.F, s.C},      {Op::kBackwardInput, rows, s.C, 2 * s.F},
        {Op::kBackwardWeight, rows, s.F, s.C},     {Op::kBackwardWeight, rows, s.F, s.C, false, true},
        {Op::kBackwardWeight, rows, s.C, 2 * s.F}, {Op::kBackwardWeight, rows, s.C, 2 * s.F, false, true}};
    list.linears.insert(list.linears.end(), std::begin(calls), std::end(calls));
  }
}

}  // namespace

LlamaConfig LlamaConfig::of(const spec::ModelSpec& model) {
  return {.layers = model.layers,
          .hidden = model.hidden,
          .heads = model.heads,
          .kv_heads = model.kv_heads,
          .ffn = model.ffn,
          .vocab = model.vocab,
          .rope_theta = model.rope_theta,
          .norm_epsilon = model.norm_epsilon,
          .tied_embeddings = model.tied_embeddings,
          .head_size = model.head_size,
          .qkv_bias = model.qkv_bias,
          .head_norms = model.head_norms,
          .window = model.window,
          .max_positions = model.max_positions,
          .rope = model.rope,
          .experts = model.experts};
}

base::Result<void> check(const LlamaConfig& config) {
  if (config.layers < 1 || config.hidden < 1 || config.heads < 1 || config.kv_heads < 1 || config.ffn < 1 ||
      config.vocab < 1) {
    return Error(Code::kInvalid, "a Llama's layers, hidden, heads, kv_heads, ffn and vocab must be positive");
  }
  if (int{config.qkv_bias} + int{config.head_norms} + int{config.window > 0} > 1) {
    return Error(Code::kInvalid,
                 "no family of models has two of qkv_bias, head_norms and a window; keep one");
  }
  const spec::ExpertSpec& experts = config.experts;
  if (experts.wanted() && (experts.per_token < 1 || experts.per_token > experts.count || config.qkv_bias)) {
    return Error(
        Code::kInvalid,
        fmt::format("a token cannot choose {} of {} experts, or they stand beside biases of q, k and v",
                    experts.per_token, experts.count));
  }
  if (config.head_size > 0 && config.head_size % 2 != 0) {
    return Error(Code::kInvalid, fmt::format("head_size {} is odd; write an even one", config.head_size));
  }
  if (config.head_size == 0 && (config.hidden % config.heads != 0 || config.hidden / config.heads % 2 != 0)) {
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
  if (config.head_elements() > 1024) {
    return Error(Code::kInvalid,
                 fmt::format("head size {} is above 1024; use more heads", config.head_elements()));
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
  for (int layer = 0; layer < config.layers; ++layer) {
    blocks.push_back(layer_layout(config, layer, slicing));
    if (config.experts.wanted()) blocks.push_back(experts_layout(config, layer));
  }
  if (config.tied_embeddings) return blocks;
  append(head, "lm_head.weight", {config.vocab, config.hidden}, 0, kInitStddev, slicing);
  blocks.push_back(std::move(head));
  return blocks;
}

ModelShape shape_of(const LlamaConfig& config) {
  ModelShape shape;
  shape.layers = config.layers;
  shape.hidden = config.hidden;
  shape.attention_width = config.head_elements() * config.heads;
  shape.kv_width = config.head_elements() * config.kv_heads;
  shape.ffn = config.ffn;
  shape.vocab = config.vocab;
  shape.tied = config.tied_embeddings;
  shape.adapted = config.lora.wanted();
  shape.experts = config.experts.count;
  shape.expert_parallel = config.expert_parallel;
  shape.architecture = &spec::architecture_of(LlamaConfig::kTrainer);
  return shape;
}

FlopsPerToken flops_per_token(const LlamaConfig& config, int sequence_length) {
  double products = 0.0;
  for (const BlockLayout& block : block_layouts(config)) {
    if (block.name == "embedding" && !config.tied_embeddings) continue;  // a table look-up
    const double used = block.name.ends_with("experts")
                            ? static_cast<double>(config.experts.per_token) / config.experts.count
                            : 1.0;
    for (const ParameterInfo& parameter : block.parameters) {
      if (parameter.shape.size() == 2) products += used * static_cast<double>(parameter.elements());
    }
  }
  double adapters = 0.0;
  if (config.lora.wanted())
    for (const BlockLayout& block : adapter_layouts(config)) adapters += static_cast<double>(block.elements);
  const double of_products = (config.lora.wanted() ? 4.0 : 6.0) * products + 6.0 * adapters;
  const auto with_scores = [&](double credit) {
    const double width = static_cast<double>(config.heads) * config.head_elements();
    return of_products + credit * config.layers * width * sequence_length;
  };
  return {.causal = with_scores(6.0), .full = with_scores(12.0)};
}

StageOfModel stage_of(const LlamaConfig& config, const Stage& stage, int sequence_length,
                      int64_t micro_steps) {
  if (stage.stages == 1) return {};
  const auto products = [](const BlockLayout& block) {
    double flops = 0.0;
    for (const ParameterInfo& parameter : block.parameters)
      if (parameter.shape.size() == 2) flops += 6.0 * static_cast<double>(parameter.elements());
    return flops;
  };
  const std::vector<BlockLayout> blocks = block_layouts(config);
  const double scores = 6.0 * config.heads * config.head_elements() * sequence_length;
  const std::vector<double> layers(config.layers, products(blocks[1]) + scores);
  const double head = products(config.tied_embeddings ? blocks.front() : blocks.back());
  const std::vector<int> first = cut_layers(layers, /*before=*/0.0, head, stage.stages, stage.chunks);
  std::vector<std::vector<int>> counts;  // of layers, by stage and chunk
  for (Stage one{0, stage.stages, stage.chunks}; one.number < stage.stages; ++one.number)
    counts.push_back(layers_of_chunks(one, first[one.number + 1] - first[one.number]));
  StageOfModel ours{.has_embedding = stage.is_first(), .has_head = stage.is_last()};
  int begin = 0;
  for (int chunk = 0; chunk < stage.chunks; ++chunk) {
    for (int number = 0; number < stage.stages; begin += counts[number++][chunk])
      if (number == stage.number) ours.chunks.push_back({begin, counts[number][chunk]});
  }
  ours.held = most_held(stage, micro_steps, counts[stage.number]);
  return ours;
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
  OpList list{run.compute, {}, {s.B, s.T, s.H, s.K, s.D, {0, static_cast<int>(s.sharers)}}};
  list.linears = {{Op::kForward, s.N, s.C, s.QKV, s.bias}, {back, s.N, s.HD, s.C},
                  {Op::kBackwardWeight, s.N, s.HD, s.C},   {Op::kBackwardInput, s.N, s.HD, s.C},
                  {Op::kBackwardWeight, s.N, s.C, s.QKV},  {input, s.N, s.C, s.QKV}};
  const LinearCall dense[] = {{Op::kForward, s.N, s.C, 2 * s.F},        {back, s.N, s.F, s.C},
                              {Op::kBackwardWeight, s.N, s.F, s.C},     {Op::kBackwardInput, s.N, s.F, s.C},
                              {Op::kBackwardWeight, s.N, s.C, 2 * s.F}, {input, s.N, s.C, 2 * s.F}};
  if (s.experts.E == 0) {
    list.linears.insert(list.linears.end(), std::begin(dense), std::end(dense));
  } else {
    add_expert_products(list, s);
  }
  for (int64_t row = 0; row < s.N && s.has_head; row += s.chunk) {
    const int64_t rows = std::min(s.chunk, s.N - row);
    list.linears.push_back({Op::kForwardFp32, rows, s.C, s.V});
    list.linears.push_back({head_input, rows, s.C, s.V});
    list.linears.push_back({Op::kBackwardWeight, rows, s.C, s.V, /*bias=*/false, /*accumulate=*/row > 0});
  }
  adapt(list, config, s.N);
  if (run.accumulates) list.also_accumulate();
  return list;
}

std::string hf_config(const LlamaConfig& config) {
  return base::JsonWriter(base::kJsonLine, 0).text_of(Published{config}, {});
}

}  // namespace shardrun::plan
