// A run that goes on with fewer nodes than it began with: the batch contract, solved again.
//
// A step stays what it was: the run keeps its global batch, whatever [batch] scaling says, and only the accumulation
// changes. So learning rates, the order of sequences and the curve are those of an undisturbed run. Where the batch does
// not divide on a number of nodes, or the mesh does not, or a node is too small, the next smaller number is tried, down
// to [fault_tolerance] min_nodes. docs/decisions/0024 says why.
//
// Thread rule: pure, but for `check`.
#pragma once

#include <functional>

#include "runtime/base/result.h"
#include "runtime/record/launch_plan.h"
#include "runtime/spec/job_spec.h"

namespace shardrun::launcher {

// Why the nodes cannot run a plan for a reason that arithmetic does not know, such as their memory.
using PlanCheck = std::function<base::Result<void>(const record::LaunchPlan&)>;

// `original` on `nodes` nodes. kInvalid: its mesh or its global batch does not divide there.
base::Result<record::LaunchPlan> plan_on_nodes(const spec::JobSpec& spec, const record::LaunchPlan& original,
                                               int nodes);

// On as many of `left` nodes as can be used, fewer than `original` has. kRefused, on one line, names the smaller numbers
// that the job would fit on. `check` may be empty.
base::Result<record::LaunchPlan> plan_on_fewer(const spec::JobSpec& spec, const record::LaunchPlan& original,
                                               int left, const PlanCheck& check);

}  // namespace shardrun::launcher
