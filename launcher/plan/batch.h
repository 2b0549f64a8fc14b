// The batch contract: global_batch = micro_batch × gradient_accumulation × data_parallel, exactly, in
// sequences.
//
// strong scaling keeps global_batch and solves gradient_accumulation; weak scaling keeps
// gradient_accumulation and lets global_batch grow. What does not divide is refused with the nearest counts
// that do; nothing is floored. Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "runtime/base/result.h"
#include "runtime/contract/job_spec.h"
#include "runtime/contract/launch_plan.h"

namespace shardrun::launcher {

// Errors: kInvalid, "origin: what; mend" with the nearest global batches and numbers of ranks that divide.
base::Result<contract::BatchPlan> solve_batch(const contract::JobSpec& spec, int64_t data_parallel);

}  // namespace shardrun::launcher
