// `shardrun-rank calibrate FILE PARTS PROVIDER`: the program of the job that `shardrun calibrate` runs, one process
// per rank. The first rank writes FILE (record/calibration.h) and says on its output what is being measured.
//
// Thread rule: called once, from the main thread.
#pragma once

#include <span>

namespace shardrun::tools {

// PARTS is "all" or "network". Returns an exit code (contract/exit_code.h).
int run_calibrate_tool(std::span<char* const> arguments);

}  // namespace shardrun::tools
