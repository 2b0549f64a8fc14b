// The JSON of a plan of what a rank holds, for the documents that hold one.
//
// Thread rule: pure functions.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "runtime/base/result.h"
#include "runtime/plan/model_plan.h"

namespace shardrun::record {

using base::Result;

nlohmann::json memory_json(const plan::MemoryPlan& plan);
// kCorrupt.
Result<plan::MemoryPlan> read_memory(const nlohmann::json& object);

std::string to_json(const plan::ModelPlan& plan);

}  // namespace shardrun::record
