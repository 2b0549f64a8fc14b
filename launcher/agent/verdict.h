// Verdict: judges from how every rank ended what happened, in one line, and what the exit code says about a
// restart.
//
// The first cause is searched among the ranks that ended badly by themselves, in this order; ties go to the earlier
// one:
//   1. ended by a signal that comes from outside or from a fault (SIGKILL, SIGSEGV, SIGBUS, …)
//   2. a non-zero exit, or a signal that a program raises about itself (SIGABRT, SIGPIPE)
//   3. a lost peer (exit 4 of the trainer): only when no rank reports something better
// What the watch found comes before all of them, unless a rank had already failed by itself when it was found.
// Ranks that were told to stop before they ended are collateral. After a stop request, exit 75 and death by SIGTERM
// are what was asked for.
//
// Exit codes (contract/exit_code.h): 0 when all ranks ended with 0; 75 when all ranks ended with 75 or 0 and at
// least one with 75; 93 when any rank that failed by itself ended with it; 4 for lost peers, a hang, a lost node, a
// scheduler's fault, or ranks that left no account; 2 when the trainer found bad input; else 1. A stopped program
// that has no checkpoint to show (it died of SIGTERM) is kFailed with 1: starting it again would repeat the work.
//
// Thread rule: pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/record/run_record.h"

namespace shardrun::launcher {

// What the watch saw (launcher/watch): a hang or a lost node.
struct WatchFinding {
  std::string kind;  // "hang" or "node_lost"
  std::string node;
  std::optional<int> global_rank;
  std::string line;
  double detected = 0.0;  // Unix seconds
};

struct VerdictInput {
  int world_size = 1;
  std::vector<record::RankExit> exits;  // at most one a rank
  std::optional<int> stop_signal;       // the one that asked the run to stop
  std::optional<std::string> scheduler_fault;
  std::optional<WatchFinding> finding;
  std::optional<int64_t> last_step;        // the last step that the trainer reported
  std::optional<std::string> ended_early;  // why the trainer made fewer steps than it was asked for
  bool trainer = false;                    // the built-in trainer, whose exit codes have a meaning
};

struct Verdict {
  record::RunStatus status = record::RunStatus::kFailed;
  std::string line;
  int exit_code = 1;
  bool stop_requested = false;
  std::optional<record::FirstCause> first_cause;
};

Verdict judge(const VerdictInput& input);

}  // namespace shardrun::launcher
