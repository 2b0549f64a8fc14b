// The model that a job trains (plan::Network), made.
//
// Thread rule: pure functions.
#pragma once

#include <memory>

#include "runtime/base/result.h"
#include "runtime/plan/model/network.h"
#include "runtime/trainer/model/bert.h"
#include "runtime/trainer/model/llama.h"

namespace shardrun::train {

using base::Result;
using plan::Network;

// kInvalid with what and the mend; also for a tensor group that the architecture cannot be cut for.
Result<std::unique_ptr<model::Model>> create_model(const Network& network,
                                                   const model::ModelOptions& options);

}  // namespace shardrun::train
