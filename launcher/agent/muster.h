// Muster: decides which nodes of the allocation the next attempt gets, and its plan there.
//
// It tries, in this order: all nodes that the job asked for, without bad ones; fewer, down to [fault_tolerance]
// min_nodes; and only then nodes where a rank hung. A node where a rank was killed is a suspect: others are
// preferred to it, but it is used before the job gets smaller. So the plan that the job began with comes back as
// soon as there are nodes for it.
//
// Thread rule: pure, except for `check`.
#pragma once

#include <string>
#include <vector>

#include "launcher/plan/fewer_nodes.h"
#include "runtime/record/run_record.h"

namespace shardrun::launcher {

// The nodes of each kind, in the order in which they were found out.
struct BadNodes {
  std::vector<std::string> lost;      // lost, or failed the preflight: never used again in this allocation
  std::vector<std::string> hung;      // a rank hung, or was killed for the second time
  std::vector<std::string> suspects;  // a rank was killed
};

// Adds what an attempt that has ended says about its nodes.
void note_bad_nodes(const record::Attempt& attempt, BadNodes& bad);

// Returns the nodes that a job queued again should not get: those that its attempts lost, or that hung or failed
// the preflight. Each is there once, the newest last.
std::vector<std::string> nodes_to_avoid(const std::vector<record::Attempt>& attempts);

struct Muster {
  record::LaunchPlan plan;
  std::vector<std::string> nodes;  // in node_index order
};

// `original` is the plan that the job began with; `all` are the nodes of the allocation. On a machine that stands
// for all nodes, as under the local scheduler, `all` has fewer than the plan. kRefused, on one line, when too few
// are left.
base::Result<Muster> muster(const spec::JobSpec& spec, const record::LaunchPlan& original,
                            const std::vector<std::string>& all, const BadNodes& bad, const PlanCheck& check);

// Returns `wanted` of `all`, in their order: none that is lost, and of the suspects only as many as are needed.
// Empty when too few are left.
std::vector<std::string> choose_nodes(const std::vector<std::string>& all,
                                      const std::vector<std::string>& lost,
                                      const std::vector<std::string>& suspects, size_t wanted);

}  // namespace shardrun::launcher
