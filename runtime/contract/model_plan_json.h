// The JSON of a MemoryPlan, for the documents that hold one. Internal to runtime/contract.
//
// Thread rule: pure functions.
#pragma once

#include <nlohmann/json.hpp>

#include "runtime/contract/model_plan.h"

namespace shardrun::contract {

nlohmann::json memory_json(const MemoryPlan& plan);
// kCorrupt.
Result<MemoryPlan> read_memory(const nlohmann::json& object);

}  // namespace shardrun::contract
