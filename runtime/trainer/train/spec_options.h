// From a job spec and its plan to what a session is made of.
//
// Thread rule: pure functions.
#pragma once

#include "runtime/record/launch_plan.h"
#include "runtime/spec/job_spec.h"
#include "runtime/trainer/train/session.h"

namespace shardrun::train {

SessionOptions session_options(const spec::JobSpec& spec, const record::LaunchPlan& plan);

}  // namespace shardrun::train
