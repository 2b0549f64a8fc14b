// Look: asks the conductor of a running attempt what it knows of the ranks.
//
// Effect: makes one TCP connection to where attempt_<n>/watch.json says, bounded in time; changes nothing of the
// run.
// Thread rule: any thread.
#pragma once

#include <vector>

#include "runtime/base/result.h"
#include "runtime/contract/heartbeat.h"
#include "runtime/record/run_dir.h"

namespace shardrun::launcher {

inline constexpr double kLookSeconds = 2.0;  // for each address of the conductor

// Returns what is known, by global rank. kIo: no address answers within kLookSeconds, or what answers is not that
// conductor.
base::Result<std::vector<contract::RankSight>> look_at_ranks(const contract::WatchPlace& place);
// The same of an attempt whose watch.json says the place. kNotFound where it has none.
base::Result<std::vector<contract::RankSight>> look_at_ranks(const record::RunDir& run, int attempt);

}  // namespace shardrun::launcher
