// The model that a job trains (plan::Network), made; and what of it is neither arithmetic nor the model's own.
//
// Thread rule: pure functions.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/plan/model/network.h"
#include "runtime/trainer/model/bert.h"
#include "runtime/trainer/model/llama.h"

namespace shardrun::train {

using base::Result;
using plan::Network;

// kInvalid with what and the mend; for BERT also a tensor group, which only a Llama can be cut for.
Result<std::unique_ptr<model::Model>> create_model(const Network& network,
                                                   const model::ModelOptions& options);
// As Hugging Face's config.json has it, one line.
std::string configuration(const Network& network);

}  // namespace shardrun::train
