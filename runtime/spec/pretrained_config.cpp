#include "runtime/spec/pretrained_config.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "runtime/base/json_fields.h"
#include "runtime/spec/architecture.h"
#include "runtime/spec/spec_reader.h"
#include "runtime/spec/toml_value.h"

namespace shardrun::spec {
namespace {

using base::Code;
using base::Error;
using base::Result;

struct Rope {
  std::optional<std::string> rope_type, type;
  std::optional<double> rope_theta, factor, low_factor, high_factor, partial;
  std::optional<int64_t> original_length;
};
void fields(auto& visit, base::Is<Rope> auto& rope) {
  visit("rope_type", rope.rope_type);
  visit("type", rope.type);
  visit("rope_theta", rope.rope_theta);
  visit("factor", rope.factor);
  visit("low_freq_factor", rope.low_factor);
  visit("high_freq_factor", rope.high_factor);
  visit("partial_rotary_factor", rope.partial);
  visit("original_max_position_embeddings", rope.original_length);
}

struct Quantization {
  std::optional<std::string> method;
};
void fields(auto& visit, base::Is<Quantization> auto& quantization) {
  visit("quant_method", quantization.method);
}

struct Config {
  std::string model_type;
  std::optional<int64_t> layers, hidden, heads, kv_heads, head_dim, ffn, vocab, max_positions, type_vocab,
      pad_token, window;
  std::optional<double> rope_theta, rms_norm_eps, layer_norm_eps;
  std::optional<std::string> activation, positions;
  std::optional<bool> tied, attention_bias, mlp_bias, use_window;
  std::optional<int64_t> expert_ffn, experts, local_experts, experts_per_token, sparse_step;
  std::optional<std::vector<int64_t>> dense_layers;
  std::optional<bool> normalize_experts;
  std::optional<double> balance, jitter;
  std::optional<Quantization> quantization;
  std::optional<Rope> rope_scaling, rope_parameters;  // of transformers 4, and of 5
};
void fields(auto& visit, base::Is<Config> auto& config) {
  visit("model_type", config.model_type);
  visit("num_hidden_layers", config.layers);
  visit("hidden_size", config.hidden);
  visit("num_attention_heads", config.heads);
  visit("num_key_value_heads", config.kv_heads);
  visit("head_dim", config.head_dim);
  visit("intermediate_size", config.ffn);
  visit("vocab_size", config.vocab);
  visit("max_position_embeddings", config.max_positions);
  visit("type_vocab_size", config.type_vocab);
  visit("pad_token_id", config.pad_token);
  visit("sliding_window", config.window);
  visit("rope_theta", config.rope_theta);
  visit("rms_norm_eps", config.rms_norm_eps);
  visit("layer_norm_eps", config.layer_norm_eps);
  visit("hidden_act", config.activation);
  visit("position_embedding_type", config.positions);
  visit("tie_word_embeddings", config.tied);
  visit("attention_bias", config.attention_bias);
  visit("mlp_bias", config.mlp_bias);
  visit("use_sliding_window", config.use_window);
  visit("moe_intermediate_size", config.expert_ffn);
  visit("num_experts", config.experts);
  visit("num_local_experts", config.local_experts);
  visit("num_experts_per_tok", config.experts_per_token);
  visit("decoder_sparse_step", config.sparse_step);
  visit("mlp_only_layers", config.dense_layers);
  visit("norm_topk_prob", config.normalize_experts);
  visit("router_aux_loss_coef", config.balance);
  visit("router_jitter_noise", config.jitter);
  visit("quantization_config", config.quantization);
  visit("rope_scaling", config.rope_scaling);
  visit("rope_parameters", config.rope_parameters);
}

// Returns where the config describes its rotary positions; null where it says nothing of them but, perhaps, their base.
const Rope* scaled_rope(const Config& config) {
  for (const auto* rope : {&config.rope_scaling, &config.rope_parameters})
    if (*rope && ((*rope)->rope_type || (*rope)->type)) return &**rope;
  return nullptr;
}

std::string rope_kind(const Config& config) {
  const Rope* rope = scaled_rope(config);
  return rope == nullptr ? "default" : rope->rope_type.value_or(rope->type.value_or("default"));
}

// Returns what our Llama lacks to compute the model; "" where it lacks nothing.
std::string lacks(const Config& config) {
  if (config.quantization)
    return fmt::format("its weights are quantized ({}), and the trainer reads F32, BF16 and F16",
                       config.quantization->method.value_or("by a method that it does not name"));
  if (config.activation.value_or("silu") != "silu")
    return fmt::format("its activation is {}, and the trainer's is silu", *config.activation);
  if (config.attention_bias.value_or(false))
    return "its attention has a bias behind its heads, too, which the trainer lacks";
  if (config.mlp_bias.value_or(false))
    return "its feed-forward matrices have biases, which the trainer lacks";
  if (config.use_window.value_or(false))
    return "only some of its layers have a sliding window, and the trainer's all have it or none";
  const std::string kind = rope_kind(config);
  if (kind != "default" && kind != "linear" && kind != "llama3")
    return fmt::format("it scales its rotary positions by \"{}\", and the trainer knows linear and llama3",
                       kind);
  for (const auto* rope : {&config.rope_scaling, &config.rope_parameters}) {
    if (*rope && (*rope)->partial.value_or(1.0) != 1.0)
      return "it turns a part of each head alone, and the trainer turns whole heads";
  }
  if (config.sparse_step.value_or(1) != 1 || (config.dense_layers && !config.dense_layers->empty()))
    return "only some of its layers have experts, and the trainer's all have them or none";
  if (config.jitter.value_or(0.0) != 0.0)
    return "its router sees noise (router_jitter_noise), and the trainer's does not";
  return "";
}

// Collects facts; the first size that is missing is kept as an error.
class Facts {
 public:
  void size(const char* key, const char* said_as, const std::optional<int64_t>& value) {
    if (value) {
      add(key, said_as, std::to_string(*value));
    } else if (missing_.empty()) {
      missing_ = said_as;
    }
  }
  void number(const char* key, const char* said_as, const std::optional<double>& value) {
    if (value) {
      add(key, said_as, fmt::format("{}", *value));
    } else if (missing_.empty()) {
      missing_ = said_as;
    }
  }
  void add(const char* key, const char* said_as, std::string value) {
    found_.facts.push_back({key, std::move(value), said_as});
  }
  Result<PretrainedConfig> finish(const std::string& file_name) {
    if (!missing_.empty()) return Error(Code::kInvalid, fmt::format("{}: it has no {}", file_name, missing_));
    return std::move(found_);
  }

 private:
  PretrainedConfig found_;
  std::string missing_;
};

// Reads what a BERT has beside the sizes of every model; returns what ours lacks to compute it, "" where it lacks nothing.
std::string read_bert(const Config& config, Facts& facts) {
  const bool pairs = config.model_type == "bert";
  const double epsilon = pairs ? 1e-12 : 1e-5;
  const int types = pairs ? 2 : 1;
  facts.size("max_positions", "max_position_embeddings", config.max_positions);
  facts.add("next_sentence", "model_type", pairs ? "true" : "false");
  const bool ours =
      config.activation.value_or("gelu") == "gelu" && config.positions.value_or("absolute") == "absolute" &&
      config.type_vocab.value_or(2) == types && config.layer_norm_eps.value_or(1e-12) == epsilon;
  if (!ours) {
    return fmt::format(
        "the trainer's {} has gelu, absolute positions, type_vocab_size {} and layer_norm_eps {}, and "
        "nothing else",
        pairs ? "BERT" : "RoBERTa", types, epsilon);
  }
  if (!pairs && config.pad_token.value_or(1) != 1)
    return "its positions count from behind pad_token_id, and the trainer's RoBERTa has token 1 for padding";
  return "";
}

void read_rope(const Config& config, Facts& facts) {
  const std::string kind = rope_kind(config);
  facts.add("rope_scaling", "rope_type", fmt::format("\"{}\"", kind == "default" ? "none" : kind));
  if (kind == "default") return;
  const Rope& rope = *scaled_rope(config);
  facts.number("rope_factor", "factor", rope.factor);
  if (kind != "llama3") return;
  facts.number("rope_low_factor", "low_freq_factor", rope.low_factor);
  facts.number("rope_high_factor", "high_freq_factor", rope.high_factor);
  facts.size("rope_original_length", "original_max_position_embeddings", rope.original_length);
}

void read_experts(const Config& config, Facts& facts) {
  const bool qwen = config.model_type == "qwen3_moe";
  const auto count = config.experts ? config.experts : config.local_experts;
  facts.size("experts", qwen ? "num_experts" : "num_local_experts", count);
  facts.size("experts_per_token", "num_experts_per_tok", config.experts_per_token);
  facts.add("normalize_experts", qwen ? "norm_topk_prob" : "model_type",
            config.normalize_experts.value_or(!qwen) ? "true" : "false");
  facts.number("balance", "router_aux_loss_coef", config.balance.value_or(0.001));
}

// Does the same for a Llama.
std::string read_llama(const Config& config, Facts& facts) {
  if (std::string what = lacks(config); !what.empty()) return what;
  const std::string& type = config.model_type;
  const bool qwen3 = type == "qwen3" || type == "qwen3_moe",
             windowed = type == "mistral" || type == "mixtral";
  const auto truth = [](bool value) { return std::string(value ? "true" : "false"); };
  facts.size("kv_heads", "num_key_value_heads",
             config.kv_heads || type != "llama" ? config.kv_heads : config.heads);
  // Hugging Face's Qwen 3 has heads of 128 where nobody says, whatever its sizes are.
  const int64_t whole = config.hidden.value_or(0) / std::max<int64_t>(1, config.heads.value_or(1));
  facts.size("head_size", "head_dim", config.head_dim.value_or(type == "qwen3" ? 128 : whole));
  std::optional<double> theta = config.rope_theta;
  if (!theta && config.rope_parameters) theta = config.rope_parameters->rope_theta;
  facts.number("rope_theta", "rope_theta", theta.value_or(10000.0));
  read_rope(config, facts);
  facts.number("norm_epsilon", "rms_norm_eps", config.rms_norm_eps.value_or(1e-6));
  facts.add("tied_embeddings", "tie_word_embeddings", truth(config.tied.value_or(false)));
  facts.add("qkv_bias", "model_type", truth(type == "qwen2"));
  facts.add("head_norms", "model_type", truth(qwen3));
  facts.size("window", "sliding_window", windowed ? config.window.value_or(0) : 0);
  if (type == "mixtral" || type == "qwen3_moe") read_experts(config, facts);
  if (config.max_positions) facts.size("max_positions", "max_position_embeddings", config.max_positions);
  return "";
}

// In the order of kArchitectures.
constexpr std::array<std::string (*)(const Config&, Facts&), kArchitectures.size()> kReaders = {read_llama,
                                                                                                read_bert};

}  // namespace

Result<PretrainedConfig> read_pretrained_config(std::string_view json, const std::string& file_name,
                                                std::string_view trainer) {
  ASSIGN_OR_RETURN(const Config config, base::parse_fields<Config>(json, file_name));
  const Architecture& architecture = architecture_of(trainer);
  std::string types;
  bool known = false;
  for (const std::string_view type : architecture.model_types) {
    if (type.empty()) continue;
    types += (types.empty() ? "" : " and ") + std::string(type);
    known = known || type == config.model_type;
  }
  if (!known) {
    return Error(Code::kInvalid, fmt::format("{}: its model is a {}, and the trainer \"{}\" reads {}",
                                             file_name, config.model_type, trainer, types));
  }
  Facts facts;
  facts.size("layers", "num_hidden_layers", config.layers);
  facts.size("hidden", "hidden_size", config.hidden);
  facts.size("heads", "num_attention_heads", config.heads);
  const bool split =
      config.model_type == "qwen3_moe";  // its feed-forward of layers without experts is another
  facts.size("ffn", split ? "moe_intermediate_size" : "intermediate_size",
             split ? config.expert_ffn : config.ffn);
  facts.size("vocab", "vocab_size", config.vocab);
  const std::string missing = kReaders[&architecture - kArchitectures.data()](config, facts);
  if (!missing.empty()) return Error(Code::kInvalid, fmt::format("{}: {}", file_name, missing));
  return facts.finish(file_name);
}

Result<ModelSpec> model_of(const PretrainedConfig& config, const std::string& file_name,
                           const std::string& trainer) {
  std::string text = "[model]\n";
  for (const ModelFact& fact : config.facts) text += fmt::format("{} = {}\n", fact.key, fact.value);
  ASSIGN_OR_RETURN(TomlValue document, parse_toml(text, file_name));
  for (TomlMember& section : document.members) {  // the places in this text are nobody's
    section.value.origin = file_name;
    for (TomlMember& member : section.value.members) member.value.origin = file_name;
  }
  SpecReading reading;
  ModelSpec model;
  read_model(document, reading, trainer, model);
  if (reading.error) return std::move(*reading.error);
  return model;
}

}  // namespace shardrun::spec
