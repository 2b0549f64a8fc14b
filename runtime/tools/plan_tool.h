// `shardrun-rank plan`: says what each rank of a job will hold, using the code that will allocate it, without
// allocating.
//
// Thread rule: call from main.
#pragma once

#include <span>

namespace shardrun::tools {

// Reads a LaunchPlan from standard input and the job spec whose path is the only argument; writes a ModelPlan as one
// line of JSON. Returns an exit code.
int run_plan_tool(std::span<char* const> arguments);

}  // namespace shardrun::tools
