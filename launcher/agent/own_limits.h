// Whether the limits of this process let it conduct a run. Where they do not, PMIx leaves ranks waiting for ever in the middle of a
// launch, or ends this process.
//
// Thread rule: call it before other threads of this process exist.
#pragma once

#include "runtime/base/result.h"
#include "runtime/record/launch_plan.h"

namespace shardrun::launcher {

// Raises the limit of open files to what the run's conductor needs. kRefused naming the hard limit where that is lower.
base::Result<void> raise_own_limits(const record::LaunchPlan& plan);

}  // namespace shardrun::launcher
