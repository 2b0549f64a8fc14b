#include "runtime/trainer/weights/hf_config.h"

#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/base/json.h"

namespace shardrun::weights {
Result<std::string> config_json(const std::string& config, const std::string& dtype, int64_t max_positions,
                                const std::string& origin) {
  nlohmann::json object = base::parse_json(config);
  if (!object.is_object()) {
    return base::Error(base::Code::kCorrupt, "the checkpoint does not hold its model's configuration");
  }
  const nlohmann::json before = origin.empty() ? nlohmann::json::object() : base::parse_json(origin);
  if (!before.is_object())
    return base::Error(base::Code::kCorrupt, "the config.json that training began with is no JSON object");
  const auto type = object.find("model_type");
  const bool decodes = type == object.end() || (*type != "bert" && *type != "roberta");
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    if (before.contains(key)) {
      object[key] = before[key];
    } else if (origin.empty() && decodes) {
      object[key] = nullptr;  // else transformers would take Llama 2's tokens, and end wherever token 2 comes
    }
  }
  object["torch_dtype"] = dtype;
  if (!object.contains("max_position_embeddings")) object["max_position_embeddings"] = max_positions;
  return base::json_text(object, /*indent=*/2) + "\n";
}

std::string adapter_config_json(const spec::LoraSpec& lora, const std::string& weights) {
  nlohmann::json names = nlohmann::json::array();
  for (const spec::LoraMatrix matrix : lora.matrices) names.push_back(spec::name_of(matrix));
  const nlohmann::json object = {{"base_model_name_or_path", weights},
                                 {"bias", "none"},
                                 {"fan_in_fan_out", false},
                                 {"inference_mode", true},
                                 {"lora_alpha", lora.alpha},
                                 {"lora_dropout", 0.0},
                                 {"peft_type", "LORA"},
                                 {"r", lora.rank},
                                 {"target_modules", std::move(names)},
                                 {"task_type", "CAUSAL_LM"},
                                 {"use_rslora", lora.rslora}};
  return base::json_text(object, /*indent=*/2) + "\n";
}

Result<std::vector<int32_t>> end_tokens(std::string_view json) {
  const nlohmann::json object = base::parse_json(json);
  if (!object.is_object()) return base::Error(base::Code::kCorrupt, "it is no JSON object");
  std::vector<int32_t> ends;
  const auto found = object.find("eos_token_id");
  if (found == object.end() || found->is_null()) return ends;
  for (const nlohmann::json& one : found->is_array() ? *found : nlohmann::json::array({*found})) {
    if (!one.is_number_integer()) return base::Error(base::Code::kCorrupt, "eos_token_id is no integer");
    const bool fits = one.is_number_unsigned() ? std::in_range<int32_t>(one.get<uint64_t>())
                                               : std::in_range<int32_t>(one.get<int64_t>());
    if (!fits)
      return base::Error(base::Code::kCorrupt,
                         fmt::format("eos_token_id is {}, an id of no vocabulary", base::json_text(one)));
    ends.push_back(one.get<int32_t>());
  }
  return ends;
}

}  // namespace shardrun::weights
