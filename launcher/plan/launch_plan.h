// Turns a checked job spec into a LaunchPlan: everything that is decided before anything starts.
//
// Thread rule: pure functions.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/record/launch_plan.h"
#include "runtime/spec/job_spec.h"

namespace shardrun::launcher {

// What the spec cannot know.
struct PlanContext {
  std::string id;
  std::string scheduler;          // "local" or "slurm"
  std::string run_directory;      // absolute
  std::string working_directory;  // absolute
  std::string rank_program;       // absolute path of shardrun-rank
  std::string plugin_directory;   // absolute
  std::string cache;              // absolute folder of [precompile]; empty where it does not matter
  std::vector<std::string> overrides;
};

// Errors: kInvalid from the batch contract, or more ranks than a job may have.
base::Result<record::LaunchPlan> solve_launch_plan(const spec::JobSpec& spec, const PlanContext& context);

}  // namespace shardrun::launcher
