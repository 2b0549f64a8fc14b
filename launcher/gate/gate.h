// Gate: looks at all nodes of an allocation, spares too, before the first step, and says which of them to leave
// out.
//
// Effect: runs one step of `shardrun-rank preflight` with the job's ranks on every node, in place of the ranks;
// when a node keeps the others from measuring, it runs another step without that node. Leaves
// attempt_<n>/preflight_<pass>/ in the run directory, and what the network usually has in the user's state
// (bandwidth_history.h). Each step takes at most kGateSeconds. Warnings go to stderr too.
//
// Thread rule: one thread calls.
#pragma once

#include <optional>
#include <string>

#include "launcher/schedule/scheduler.h"
#include "runtime/record/preflight.h"

namespace shardrun::launcher {

inline constexpr int kGateSeconds = 60;

struct GateOutcome {
  record::PreflightNote note;        // its excluded nodes must not be used
  std::optional<int> stop_signal;    // the signal that asked us to stop meanwhile: nothing was decided
  std::optional<base::Error> error;  // nothing could be found out, and nobody is to blame
  // Every node has the same fault, so it is not a node's but the job's, or the cluster's.
  bool is_everywhere = false;
};

// `step` is as for the ranks, but with all nodes of the allocation; `wanted` of them are needed.
GateOutcome look_at_nodes(Scheduler& scheduler, const StepRequest& step, size_t wanted);

// Returns one line for the verdict: which node was left out and why, and how many more. "" for none.
std::string excluded_words(const record::PreflightNote& note);

}  // namespace shardrun::launcher
