#include "runtime/plan/model/bert.h"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "runtime/base/json_fields.h"
#include "runtime/plan/model/bert_buffers.h"

namespace shardrun::plan {
namespace {

using base::Code;
using base::Error;

constexpr double kBertInitStddev = 0.02;

class Builder {
 public:
  Builder(std::string block_name, std::string prefix)
      : block_{std::move(block_name), {}, 0}, prefix_(std::move(prefix)) {}

  void matrix(const std::string& name, int64_t rows, int64_t columns) {
    append(name, {rows, columns}, /*weight_decay=*/true, kBertInitStddev, 0.0);
  }
  void bias(const std::string& name, int64_t size) { append(name, {size}, /*weight_decay=*/false, 0.0, 0.0); }
  void layernorm(const std::string& name, int64_t size) {
    append(name + ".weight", {size}, /*weight_decay=*/false, 0.0, 1.0);
    append(name + ".bias", {size}, /*weight_decay=*/false, 0.0, 0.0);
  }
  BlockLayout take() { return std::move(block_); }

 private:
  void append(const std::string& name, std::vector<int64_t> shape, bool weight_decay, double stddev,
              double value) {
    block_.append({prefix_ + name, std::move(shape), 0, weight_decay, stddev, value});
  }
  BlockLayout block_;
  std::string prefix_;
};

// The order is what runtime/trainer/model/bert_offsets.h counts in.
BlockLayout embedding_layout(const BertConfig& config) {
  const int64_t C = config.hidden;
  const bool bert = config.next_sentence;
  const std::string encoder = bert ? "bert" : "roberta";
  Builder block("embedding", "");
  block.matrix(encoder + ".embeddings.word_embeddings.weight", config.vocab, C);
  block.matrix(encoder + ".embeddings.position_embeddings.weight", config.max_positions, C);
  block.matrix(encoder + ".embeddings.token_type_embeddings.weight", config.type_vocab, C);
  block.layernorm(encoder + ".embeddings.LayerNorm", C);
  if (bert) {
    block.matrix("bert.pooler.dense.weight", C, C);
    block.bias("bert.pooler.dense.bias", C);
  }
  const std::string transform = bert ? "cls.predictions.transform." : "lm_head.";
  block.matrix(transform + "dense.weight", C, C);
  block.bias(transform + "dense.bias", C);
  block.layernorm(transform + (bert ? "LayerNorm" : "layer_norm"), C);
  block.bias(bert ? "cls.predictions.bias" : "lm_head.bias", config.vocab);
  if (bert) {
    block.matrix("cls.seq_relationship.weight", kRelations, C);
    block.bias("cls.seq_relationship.bias", kRelations);
  }
  return block.take();
}

BlockLayout layer_layout(const BertConfig& config, int layer) {
  const int64_t C = config.hidden, F = config.ffn;
  Builder block(fmt::format("layer {}", layer),
                fmt::format("{}.encoder.layer.{}.", config.next_sentence ? "bert" : "roberta", layer));
  block.matrix("attention.self.query.weight", C, C);
  block.matrix("attention.self.key.weight", C, C);
  block.matrix("attention.self.value.weight", C, C);
  block.bias("attention.self.query.bias", C);
  block.bias("attention.self.key.bias", C);
  block.bias("attention.self.value.bias", C);
  block.matrix("attention.output.dense.weight", C, C);
  block.bias("attention.output.dense.bias", C);
  block.layernorm("attention.output.LayerNorm", C);
  block.matrix("intermediate.dense.weight", F, C);
  block.bias("intermediate.dense.bias", F);
  block.matrix("output.dense.weight", C, F);
  block.bias("output.dense.bias", C);
  block.layernorm("output.LayerNorm", C);
  return block.take();
}

// The config.json of BertForPreTraining or RobertaForMaskedLM.
struct PublishedBert {
  const BertConfig& config;
};
void fields(auto& visit, const PublishedBert& published) {
  const BertConfig& config = published.config;
  visit("architectures",
        std::vector<std::string>{config.next_sentence ? "BertForPreTraining" : "RobertaForMaskedLM"});
  visit("attention_probs_dropout_prob", 0.0);
  visit("hidden_act", std::string("gelu"));
  visit("hidden_dropout_prob", 0.0);
  visit("hidden_size", config.hidden);
  visit("intermediate_size", config.ffn);
  visit("layer_norm_eps", config.norm_epsilon);
  visit("max_position_embeddings", config.max_positions);
  visit("model_type", std::string(config.next_sentence ? "bert" : "roberta"));
  visit("num_attention_heads", config.heads);
  visit("num_hidden_layers", config.layers);
  visit("tie_word_embeddings", true);
  visit("type_vocab_size", config.type_vocab);
  visit("vocab_size", config.vocab);
}

}  // namespace

BertConfig BertConfig::of(const spec::ModelSpec& model) {
  return {.layers = model.layers,
          .hidden = model.hidden,
          .heads = model.heads,
          .ffn = model.ffn,
          .vocab = model.vocab,
          .max_positions = model.max_positions,
          .type_vocab = model.next_sentence ? 2 : 1,
          .norm_epsilon = model.next_sentence ? 1e-12 : 1e-5,
          .next_sentence = model.next_sentence};
}

base::Result<void> check(const BertConfig& config) {
  if (config.layers < 1 || config.hidden < 1 || config.heads < 1 || config.ffn < 1 || config.vocab < 1 ||
      config.max_positions < 1 || config.type_vocab < 1) {
    return Error(Code::kInvalid,
                 "a BERT's layers, hidden, heads, ffn, vocab, max_positions and type_vocab must be positive");
  }
  if (config.hidden % config.heads != 0) {
    return Error(Code::kInvalid,
                 fmt::format("hidden {} does not divide into {} heads; make hidden a multiple", config.hidden,
                             config.heads));
  }
  if (config.hidden / config.heads > 1024) {
    return Error(Code::kInvalid,
                 fmt::format("head size {} is above 1024; use more heads", config.hidden / config.heads));
  }
  return {};
}

ModelShape shape_of(const BertConfig& config) {
  ModelShape shape;
  shape.layers = config.layers;
  shape.hidden = config.hidden;
  shape.kv_width = config.hidden;
  shape.ffn = config.ffn;
  shape.ffn_matrices = 2;
  shape.vocab = config.vocab;
  shape.tied = true;
  shape.architecture = &spec::architecture_of(BertConfig::kTrainer);
  return shape;
}

std::vector<BlockLayout> block_layouts(const BertConfig& config, int /*tensor_rank*/,
                                       int /*tensor_parallel*/) {
  std::vector<BlockLayout> blocks;
  blocks.push_back(embedding_layout(config));
  for (int layer = 0; layer < config.layers; ++layer) blocks.push_back(layer_layout(config, layer));
  return blocks;
}

FlopsPerToken flops_per_token(const BertConfig& config, int sequence_length) {
  const double C = config.hidden, F = config.ffn, L = config.layers;
  const double layers = L * (4.0 * C * C + 2.0 * C * F);
  const double head = 0.15 * (C * C + C * config.vocab);
  const double all = 6.0 * (layers + head) + 12.0 * L * C * sequence_length;
  return {.causal = all, .full = all};
}

int64_t masked_words(int64_t words) {
  return std::max<int64_t>(1, (words * 15 + 50) / 100);
}

int special_tokens(bool next_sentence) {
  return next_sentence ? 3 : 2;
}

int64_t most_targets(const BertConfig& config, int sequence_length) {
  return masked_words(std::max(1, sequence_length - special_tokens(config.next_sentence)));
}

ActivationBytes activation_bytes(const BertConfig& config, const ModelRun& run, int /*tensor_parallel*/) {
  const BertSizes sizes(config, run);
  return run.compute == DType::kFp32
             ? planned_activations(BertBuffers<float>(sizes, nullptr, nullptr), run)
             : planned_activations(BertBuffers<uint16_t>(sizes, nullptr, nullptr), run);
}

OpList ops(const BertConfig& config, const ModelRun& run, int /*tensor_parallel*/) {
  using Op = LinearCall::Op;
  constexpr bool kBias = true, kSums = true;
  const BertSizes s(config, run);
  OpList list{run.compute, {}, {s.B, s.T, s.H, s.H, s.D}};
  list.linears = {
      {Op::kForward, s.N, s.C, 3 * s.C, kBias}, {Op::kForward, s.N, s.C, s.C, kBias},
      {Op::kForward, s.N, s.C, s.F, kBias},     {Op::kForward, s.N, s.F, s.C, kBias},
      {Op::kBackwardWeight, s.N, s.F, s.C},     {Op::kBackwardInput, s.N, s.F, s.C},
      {Op::kBackwardWeight, s.N, s.C, s.F},     {Op::kBackwardInput, s.N, s.C, s.F, !kBias, kSums},
      {Op::kBackwardWeight, s.N, s.C, s.C},     {Op::kBackwardInput, s.N, s.C, s.C},
      {Op::kBackwardWeight, s.N, s.C, 3 * s.C}, {Op::kBackwardInput, s.N, s.C, 3 * s.C, !kBias, kSums}};
  for (int64_t row = 0; row < s.M; row += s.chunk) {
    const int64_t rows = std::min(s.chunk, s.M - row);
    list.linears.push_back({Op::kForwardFp32, rows, s.C, s.V, kBias});
    list.linears.push_back({Op::kBackwardInput, rows, s.C, s.V});
    list.linears.push_back({Op::kBackwardWeight, rows, s.C, s.V, !kBias, /*accumulate=*/row > 0});
  }
  for (const int64_t rows :
       {s.M, s.relations > 0 ? s.B : 0}) {  // the transform before the head, and the pooler
    if (rows == 0) continue;
    list.linears.push_back({Op::kForward, rows, s.C, s.C, kBias});
    list.linears.push_back({Op::kBackwardWeight, rows, s.C, s.C});
    list.linears.push_back({Op::kBackwardInput, rows, s.C, s.C});
  }
  if (s.relations > 0) {
    list.linears.push_back({Op::kForwardFp32, s.B, s.C, kRelations, kBias});
    list.linears.push_back({Op::kBackwardWeight, s.B, s.C, kRelations});
    list.linears.push_back({Op::kBackwardInput, s.B, s.C, kRelations});
  }
  if (run.accumulates) list.also_accumulate();
  return list;
}

std::string hf_config(const BertConfig& config) {
  return base::JsonWriter(base::kJsonLine, 0).text_of(PublishedBert{config}, {});
}

}  // namespace shardrun::plan
