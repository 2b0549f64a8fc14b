// From a job spec and its plan to what a session is made of.
//
// Thread rule: pure functions.
#pragma once

#include <string>

#include "runtime/contract/job_spec.h"
#include "runtime/contract/launch_plan.h"
#include "runtime/train/session.h"

namespace shardrun::train {

// What the spec alone says of the model.
Network network_of(const contract::JobSpec& spec);
kernels::DType compute_type(const contract::JobSpec& spec);

SessionOptions session_options(const contract::JobSpec& spec, const contract::LaunchPlan& plan);

// `path` of the spec, which starts in the working directory; empty stays empty.
std::string absolute_path(const std::string& path, const contract::LaunchPlan& plan);

}  // namespace shardrun::train
