// The batch contract: how many sequences a step has and how they are spread over the ranks, exactly
// (runtime/plan/batch_plan.h).
//
// Strong scaling keeps global_batch and solves gradient_accumulation; weak scaling keeps gradient_accumulation and
// lets global_batch grow. What does not divide is refused with the nearest counts that do, or spread unevenly where
// [batch] uneven = "distribute" asks for it; nothing is floored. A restart on fewer nodes calls the same function
// again.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/result.h"
#include "runtime/record/launch_plan.h"
#include "runtime/spec/job_spec.h"

namespace shardrun::launcher {

// Errors: kInvalid, "origin: what; mend" with the nearest global batches and numbers of ranks that divide.
base::Result<plan::BatchPlan> solve_batch(const spec::JobSpec& spec, int64_t data_parallel);

// The numbers of nodes nearest to `nodes`, below and above it, on which mesh and batch of the job can be solved; 0
// where there is none.
struct NearestNodes {
  int64_t below = 0, above = 0;
};
NearestNodes nearest_nodes(const spec::JobSpec& spec, int64_t nodes);

// Returns one line for people: "64 sequences = micro-batch 8 × accumulation 2 × 4 data-parallel ranks".
std::string describe_batch(const plan::BatchPlan& plan);

}  // namespace shardrun::launcher
