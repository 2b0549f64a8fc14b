// Lets a run go on with fewer nodes than it began with: solves the batch contract again.
//
// A step stays what it was: the run keeps its global batch, whatever [batch] scaling says, and only the gradient
// accumulation changes. So learning rates, the order of sequences and the loss curve are those of an undisturbed
// run. Where the batch does not divide on a number of nodes, or the mesh does not, or a node is too small, the next
// smaller number is tried, down to [fault_tolerance] min_nodes. docs/decisions/0024 says why.
//
// Thread rule: pure, except for `check`.
#pragma once

#include <functional>

#include "runtime/base/result.h"
#include "runtime/record/launch_plan.h"
#include "runtime/spec/job_spec.h"

namespace shardrun::launcher {

// Says why the nodes cannot run a plan for a reason that arithmetic does not know, such as their memory.
using PlanCheck = std::function<base::Result<void>(const record::LaunchPlan&)>;

// Returns `original` on `nodes` nodes. kInvalid: its mesh or its global batch does not divide there.
base::Result<record::LaunchPlan> plan_on_nodes(const spec::JobSpec& spec, const record::LaunchPlan& original,
                                               int nodes);

// Returns the plan on as many of `left` nodes as can be used, fewer than `original` has. kRefused, on one line,
// names the smaller numbers that the job would fit on. `check` may be empty.
base::Result<record::LaunchPlan> plan_on_fewer(const spec::JobSpec& spec, const record::LaunchPlan& original,
                                               int left, const PlanCheck& check);

}  // namespace shardrun::launcher
