// config.json of a checkpoint as transformers has it: that of an export, from the configuration that the checkpoint has (hf_config() of
// runtime/plan/model/network.h).
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/spec/lora_spec.h"

namespace shardrun::weights {

using base::Result;

// Returns the file that transformers reads: the configuration, the dtype of its tensors ("bfloat16", "float32"), where the
// configuration has none, max_position_embeddings, and the special tokens of `origin`, the config.json of the model that
// training began with; where that is empty, a decoder has none. kCorrupt when one is not a JSON object.
Result<std::string> config_json(const std::string& config, const std::string& dtype, int64_t max_positions,
                                const std::string& origin = "");

// Returns the adapter_config.json of adapters, as PEFT reads it. `weights`: those that they stand beside.
std::string adapter_config_json(const spec::LoraSpec& lora, const std::string& weights);

// Returns the tokens that end what a model says, as its config.json or generation_config.json names them: eos_token_id, one or
// several; empty where it names none. kCorrupt when the text is not a JSON object, or they are no integers of 32 bits.
Result<std::vector<int32_t>> end_tokens(std::string_view json);

}  // namespace shardrun::weights
