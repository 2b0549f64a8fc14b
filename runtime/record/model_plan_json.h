// The JSON of a plan of what a rank holds, as `shardrun-rank plan` answers with it.
//
// Thread rule: pure functions.
#pragma once

#include <string>

#include "runtime/base/result.h"
#include "runtime/plan/model_plan.h"

namespace shardrun::record {

using base::Result;

std::string to_json(const plan::ModelPlan& plan);

}  // namespace shardrun::record
