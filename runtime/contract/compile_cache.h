// Where compiled code lies, and a GPU's tables of matrix products: the folder of [precompile] cache, or the default, which
// is the trainer's always. Launcher and ranks must agree on it.
//
// Thread rule: calls the lookup, by default of the environment, which no thread may change meanwhile.
#pragma once

#include <string>

#include "runtime/contract/rank_env.h"
#include "runtime/spec/job_spec.h"

namespace shardrun::contract {

using base::Result;

// Absolute: `working_directory` before a relative one, ~/.cache/shardrun/compile by default. kInvalid when HOME names
// no folder.
Result<std::string> compile_cache_folder(const spec::JobSpec& spec, const std::string& working_directory,
                                         const EnvironmentLookup& lookup = process_environment());

}  // namespace shardrun::contract
