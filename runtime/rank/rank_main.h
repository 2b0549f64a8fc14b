// rank_main: what shardrun-rank does, from its environment to its exit code.
//
// Thread rule: call once, from the only thread of the process.
#pragma once

#include <string>

namespace shardrun::rank {

// Reads the rank's environment, plan.json and job.toml, runs the job's command, or its trainer by `runtime_program`, under a
// supervisor and ends as the program ended. Returns an exit code only when the program could not be started; the reason was
// printed to stderr.
int run_rank(const std::string& runtime_program);

}  // namespace shardrun::rank
