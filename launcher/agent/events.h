// Events: events.jsonl says what happened to a run and when, a line each; `shardrun explain` reads it.
//
//   {"time":1700000000.123,"event":"attempt_started","attempt":0,"nodes":["n1","n2"]}
//
// An attempt that is no longer the newest writes no line. A full disk costs lines, never the job.
// Thread rule: free function; one process of a run writes.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "runtime/record/run_dir.h"

namespace shardrun::launcher {

// Appends a line with {"time", "event", "attempt"} and `members`.
void write_event(const record::RunDir& run, int attempt, const std::string& event,
                 const nlohmann::json& members);

}  // namespace shardrun::launcher
