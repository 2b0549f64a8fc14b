// What a checkpoint says of its model: Hugging Face's config.json, as keys of [model].
//
// A checkpoint that our models cannot compute is refused here, with the one thing that they lack, before anything trains on
// weights that mean something else. Source of the names: the configuration classes of transformers 4 and 5 for Llama,
// Mistral, Mixtral, Qwen 2, 3 and 3 MoE, and BERT.
//
// Thread rule: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/spec/model_spec.h"

namespace shardrun::spec {

struct ModelFact {
  std::string key;      // of [model]: "hidden"
  std::string value;    // as TOML: "2048"
  std::string said_as;  // of config.json: "hidden_size"
};

struct PretrainedConfig {
  std::vector<ModelFact> facts;
};

// Reads a config.json for a trainer, a name of kArchitectures. kInvalid: "<file_name>: what the trainer lacks or what does not hold
// together"; kCorrupt when it is not JSON or a member has another type.
base::Result<PretrainedConfig> read_pretrained_config(std::string_view json, const std::string& file_name,
                                                      std::string_view trainer);

// Returns the model that the facts say, checked as [model] of a job is. kInvalid with `file_name` and what does not hold
// together.
base::Result<ModelSpec> model_of(const PretrainedConfig& config, const std::string& file_name,
                                 const std::string& trainer);

}  // namespace shardrun::spec
