// `shardrun-rank preflight`: runs as one process per rank, on every node of an allocation, before the first step.
//
// Thread rule: call from main.
#pragma once

#include <span>

namespace shardrun::tools {

// Arguments: a folder for what is found (runtime/record/preflight.h), and the usual bandwidth in bytes a second,
// 0 where none is known. Which rank this is comes from the environment, the job from the run directory. Ends with
// kExitDone whatever was found; kExitRefused when the run directory is not visible here, kExitInfrastructure when
// nothing can be written into it.
int run_preflight_tool(std::span<char* const> arguments);

}  // namespace shardrun::tools
