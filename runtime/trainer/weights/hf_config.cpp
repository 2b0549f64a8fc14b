#include "runtime/trainer/weights/hf_config.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "runtime/base/json.h"

namespace shardrun::weights {
namespace {

using nlohmann::json;

bool has_parameter(const std::vector<model::BlockLayout>& blocks, const std::string& name) {
  return std::any_of(blocks.begin(), blocks.end(), [&](const model::BlockLayout& block) {
    return std::any_of(block.parameters.begin(), block.parameters.end(),
                       [&](const model::ParameterInfo& parameter) { return parameter.name == name; });
  });
}

}  // namespace

std::string hf_config(const model::LlamaConfig& config) {
  const bool tied = !has_parameter(plan::block_layouts(config), "lm_head.weight");
  const json object = {{"architectures", {"LlamaForCausalLM"}},
                       {"model_type", "llama"},
                       {"num_hidden_layers", config.layers},
                       {"hidden_size", config.hidden},
                       {"num_attention_heads", config.heads},
                       {"num_key_value_heads", config.kv_heads},
                       {"head_dim", config.hidden / config.heads},
                       {"intermediate_size", config.ffn},
                       {"vocab_size", config.vocab},
                       {"rope_theta", config.rope_theta},
                       {"rms_norm_eps", config.norm_epsilon},
                       {"hidden_act", "silu"},
                       {"attention_bias", false},
                       {"mlp_bias", false},
                       {"tie_word_embeddings", tied}};
  return base::json_text(object);
}

std::string hf_config(const model::BertConfig& config) {
  const json object = {{"architectures", {"BertForPreTraining"}},
                       {"model_type", "bert"},
                       {"num_hidden_layers", config.layers},
                       {"hidden_size", config.hidden},
                       {"num_attention_heads", config.heads},
                       {"intermediate_size", config.ffn},
                       {"vocab_size", config.vocab},
                       {"max_position_embeddings", config.max_positions},
                       {"type_vocab_size", config.type_vocab},
                       {"layer_norm_eps", config.norm_epsilon},
                       {"hidden_act", "gelu"},
                       {"hidden_dropout_prob", 0.0},
                       {"attention_probs_dropout_prob", 0.0},
                       {"tie_word_embeddings", true}};
  return base::json_text(object);
}

Result<std::string> config_json(const std::string& config, const std::string& dtype, int64_t max_positions) {
  json object = base::parse_json(config);
  if (!object.is_object()) {
    return base::Error(base::Code::kCorrupt, "the checkpoint does not hold its model's configuration");
  }
  object["torch_dtype"] = dtype;
  if (!object.contains("max_position_embeddings")) object["max_position_embeddings"] = max_positions;
  return base::json_text(object, /*indent=*/2) + "\n";
}

}  // namespace shardrun::weights
