// The limit of volume of a run's output, shared among attempts and ranks.
//
// Thread rule: free function; reads the sizes of files.
#pragma once

#include <cstdint>

#include "runtime/record/run_dir.h"
#include "runtime/spec/job_spec.h"

namespace shardrun::launcher {

// Returns how many bytes of a rank's output attempt `number` keeps: rank_limit_mib, or an equal part of half of what the
// attempts before it have left of run_limit_mib, but 256 KiB at least.
int64_t rank_output_bytes(const spec::LoggingSpec& logging, const record::RunDir& run, int number,
                          int world_size);

}  // namespace shardrun::launcher
