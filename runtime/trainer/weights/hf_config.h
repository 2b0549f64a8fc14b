// A model's configuration as Hugging Face's config.json has it. Also what a checkpoint says its model is.
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

// One line, keys sorted: LlamaForCausalLM; tie_word_embeddings is true when the layout has no lm_head.weight.
std::string hf_config(const model::LlamaConfig& config);
// BertForPreTraining, without dropout.
std::string hf_config(const model::BertConfig& config);

// The file that transformers reads: the configuration, the dtype of its tensors ("bfloat16", "float32") and, where the
// configuration has none, max_position_embeddings. kCorrupt when `config` is no JSON object.
Result<std::string> config_json(const std::string& config, const std::string& dtype, int64_t max_positions);

}  // namespace shardrun::weights
