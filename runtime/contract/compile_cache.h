// Where compiled code and a GPU's tables of matrix products lie: the folder of [precompile] cache, or the default,
// which is always the trainer's. Launcher and ranks must agree on it.
//
// Thread rule: calls the lookup, which by default reads the environment; no thread may change that meanwhile.
#pragma once

#include <string>

#include "runtime/contract/rank_env.h"
#include "runtime/spec/job_spec.h"

namespace shardrun::contract {

using base::Result;

// Returns an absolute path: `working_directory` is put before a relative one, and the default is
// ~/.cache/shardrun/compile. kInvalid when HOME names no folder.
Result<std::string> compile_cache_folder(const spec::JobSpec& spec, const std::string& working_directory,
                                         const EnvironmentLookup& lookup = process_environment());

}  // namespace shardrun::contract
