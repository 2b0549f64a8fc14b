// From a job spec and its plan to what a session is made of.
//
// Thread rule: pure functions.
#pragma once

#include <string>

#include "runtime/record/launch_plan.h"
#include "runtime/spec/job_spec.h"
#include "runtime/trainer/train/session.h"

namespace shardrun::train {

SessionOptions session_options(const spec::JobSpec& spec, const record::LaunchPlan& plan);

// `path` of the spec, which starts in the working directory; empty stays empty.
std::string absolute_path(const std::string& path, const record::LaunchPlan& plan);

}  // namespace shardrun::train
