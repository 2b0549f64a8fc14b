// Events: events.jsonl, what happened to a run and when, a line each; `shardrun explain` reads it.
//
//   {"time":1700000000.123,"event":"attempt_started","attempt":0,"nodes":["n1","n2"]}
//
// A line of an attempt that is not the newest any more is not written. A full disk costs lines, never the job.
// Thread rule: free function; one process of a run writes.
#pragma once

#include "runtime/record/run_dir.h"
#include "runtime/record/run_lines.h"

namespace shardrun::launcher {

// Appends the line with the time of now, for `attempt`.
void write_event(const record::RunDir& run, int attempt, record::EventLine line);

}  // namespace shardrun::launcher
