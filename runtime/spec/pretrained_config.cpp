#include "runtime/spec/pretrained_config.h"

#include <array>

#include <fmt/format.h>

#include "runtime/base/json_fields.h"
#include "runtime/spec/architecture.h"

namespace shardrun::spec {
namespace {

using base::Code;
using base::Error;
using base::Result;

struct Rope {
  std::optional<std::string> rope_type, type;
  std::optional<double> rope_theta;
};
void fields(auto& visit, base::Is<Rope> auto& rope) {
  visit("rope_type", rope.rope_type);
  visit("type", rope.type);
  visit("rope_theta", rope.rope_theta);
}

struct Config {
  std::string model_type;
  std::optional<int64_t> layers, hidden, heads, kv_heads, head_dim, ffn, vocab, max_positions, type_vocab,
      window;
  std::optional<double> rope_theta, rms_norm_eps, layer_norm_eps;
  std::optional<std::string> activation, positions;
  std::optional<bool> tied, attention_bias, mlp_bias;
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
  visit("sliding_window", config.window);
  visit("rope_theta", config.rope_theta);
  visit("rms_norm_eps", config.rms_norm_eps);
  visit("layer_norm_eps", config.layer_norm_eps);
  visit("hidden_act", config.activation);
  visit("position_embedding_type", config.positions);
  visit("tie_word_embeddings", config.tied);
  visit("attention_bias", config.attention_bias);
  visit("mlp_bias", config.mlp_bias);
  visit("rope_scaling", config.rope_scaling);
  visit("rope_parameters", config.rope_parameters);
}

std::string rope_kind(const std::optional<Rope>& rope) {
  if (!rope) return "default";
  return rope->rope_type.value_or(rope->type.value_or("default"));
}

// Returns what our Llama lacks to compute the model; "" where it lacks nothing.
std::string lacks(const Config& config) {
  if (config.activation.value_or("silu") != "silu")
    return fmt::format("its activation is {}, and the trainer's is silu", *config.activation);
  if (config.attention_bias.value_or(false)) return "its attention has biases, which the trainer lacks";
  if (config.mlp_bias.value_or(false))
    return "its feed-forward matrices have biases, which the trainer lacks";
  for (const auto* rope : {&config.rope_scaling, &config.rope_parameters}) {
    if (rope_kind(*rope) != "default")
      return fmt::format("it scales its rotary positions by \"{}\", which the trainer lacks",
                         rope_kind(*rope));
  }
  if (config.head_dim && config.hidden && config.heads && *config.head_dim * *config.heads != *config.hidden)
    return fmt::format("its heads have {} elements, and the trainer's have hidden_size / num_attention_heads",
                       *config.head_dim);
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
  void number(const char* key, const char* said_as, double value) {
    add(key, said_as, fmt::format("{}", value));
  }
  void add(const char* key, const char* said_as, std::string value) {
    found_.facts.push_back({key, std::move(value), said_as});
  }
  void window(std::optional<int64_t> tokens) { found_.sliding_window = tokens; }
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
  facts.size("max_positions", "max_position_embeddings", config.max_positions);
  const bool ours = config.activation.value_or("gelu") == "gelu" &&
                    config.positions.value_or("absolute") == "absolute" &&
                    config.type_vocab.value_or(2) == 2 && config.layer_norm_eps.value_or(1e-12) == 1e-12;
  return ours ? ""
              : "the trainer's BERT has gelu, absolute positions, two token types and "
                "layer_norm_eps 1e-12, and nothing else";
}

// Does the same for a Llama.
std::string read_llama(const Config& config, Facts& facts) {
  if (std::string what = lacks(config); !what.empty()) return what;
  facts.size("kv_heads", "num_key_value_heads", config.kv_heads ? config.kv_heads : config.heads);
  std::optional<double> theta = config.rope_theta;
  if (!theta && config.rope_parameters) theta = config.rope_parameters->rope_theta;
  facts.number("rope_theta", "rope_theta", theta.value_or(10000.0));
  facts.number("norm_epsilon", "rms_norm_eps", config.rms_norm_eps.value_or(1e-6));
  facts.add("tied_embeddings", "tie_word_embeddings", config.tied.value_or(false) ? "true" : "false");
  facts.window(config.window);
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
  facts.size("ffn", "intermediate_size", config.ffn);
  facts.size("vocab", "vocab_size", config.vocab);
  const std::string missing = kReaders[&architecture - kArchitectures.data()](config, facts);
  if (!missing.empty()) return Error(Code::kInvalid, fmt::format("{}: {}", file_name, missing));
  return facts.finish(file_name);
}

}  // namespace shardrun::spec
