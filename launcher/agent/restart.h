// Restart: decides what follows an attempt that did not complete. muster.h says on which nodes.
//
// An attempt that failed is started again in the same allocation while max_restarts allows it and enough nodes are
// left; where they are not, the job is queued again when requeue says so. It is never started again after exit code
// 93 (the program says that another try cannot help), exit code 2 (bad input), a refusal, lack of memory, or a
// request to stop, and not after kHopelessRestarts in a row that wrote no newer checkpoint than the attempts before
// them, counted over all starts of the job. A command has no checkpoints that we know of, so each of its restarts
// counts. Behind one that the scheduler could not begin, or ended itself, the next waits some seconds, and longer behind each
// further one: a controller that starts again or changes its machine refuses everything for a while.
//
// Thread rule: pure.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "runtime/record/run_record.h"
#include "runtime/spec/job_spec.h"

namespace shardrun::launcher {

inline constexpr int kHopelessRestarts = 3;

enum class Next { kStop, kRestart, kRequeue };

struct RestartInput {
  record::RunStatus status = record::RunStatus::kFailed;
  int exit_code = 1;
  bool stop_requested = false;
  bool out_of_memory = false;  // the first cause was lack of memory
  int restarts_here = 0;       // restarts in this allocation so far
  std::string too_few;         // why the nodes that are left cannot go on; empty if they can
  bool can_requeue = false;    // there is a queue to go back to
  int scheduler_faults = 0;    // attempts in a row, with this one, of which the scheduler was the first cause
  // Newest step that each attempt wrote, oldest attempt first.
  std::vector<std::optional<int64_t>> checkpoints;
};

struct Decision {
  Next next = Next::kStop;
  std::string why;  // explains a stop or a requeue that the settings alone do not explain; else ""
  std::chrono::seconds pause{};  // before a restart
};

Decision decide(const RestartInput& input, const spec::FaultToleranceSpec& settings);

// Returns the number of restarts since one wrote a newer checkpoint than all attempts before it.
int restarts_without_progress(const std::vector<std::optional<int64_t>>& checkpoints);

}  // namespace shardrun::launcher
