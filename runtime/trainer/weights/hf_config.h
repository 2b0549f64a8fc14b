// A model's configuration in the form of Hugging Face's config.json. A checkpoint says in the same form what its
// model is.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/result.h"
#include "runtime/trainer/model/bert.h"
#include "runtime/trainer/model/llama.h"

namespace shardrun::weights {

using base::Result;

// Returns one line with sorted keys, for LlamaForCausalLM; tie_word_embeddings is true when the layout has no
// lm_head.weight.
std::string hf_config(const model::LlamaConfig& config);
// The same for BertForPreTraining, without dropout.
std::string hf_config(const model::BertConfig& config);

// Returns the file that transformers reads: the configuration, the dtype of its tensors ("bfloat16", "float32")
// and, where the configuration has none, max_position_embeddings. kCorrupt when `config` is not a JSON object.
Result<std::string> config_json(const std::string& config, const std::string& dtype, int64_t max_positions);

}  // namespace shardrun::weights
