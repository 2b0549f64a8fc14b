// rank_main: what shardrun-rank does, from its environment to its exit code.
//
// Thread rule: call once, from the only thread of the process.
#pragma once

#include <string>

#include "runtime/base/result.h"

namespace shardrun::rank {

// Reads the rank's environment, plan.json and job.toml, runs the job's command, or its trainer by the program that
// `find_runtime` names, under a supervisor and ends as the program ended. Returns an exit code only when the program could not be
// started; the reason was printed to stderr.
int run_rank(base::Result<std::string> (*find_runtime)());

}  // namespace shardrun::rank
