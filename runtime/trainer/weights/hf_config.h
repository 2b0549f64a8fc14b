// config.json of an exported checkpoint, from the configuration that the checkpoint has (hf_config() of
// runtime/plan/model/network.h).
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/result.h"

namespace shardrun::weights {

using base::Result;

// Returns the file that transformers reads: the configuration, the dtype of its tensors ("bfloat16", "float32")
// and, where the configuration has none, max_position_embeddings. kCorrupt when `config` is not a JSON object.
Result<std::string> config_json(const std::string& config, const std::string& dtype, int64_t max_positions);

}  // namespace shardrun::weights
