// What is said of a run of the built-in trainer before it starts: its step, by a calibration or by published runs, moved by
// earlier runs of the job, and the peaks that its utilization is a share of.
//
// Thread rule: free functions of the main thread.
#pragma once

#include <optional>
#include <string>

#include "runtime/record/launch_plan.h"
#include "runtime/record/run_record.h"
#include "runtime/spec/job_spec.h"

namespace shardrun::launcher {

// Returns the peak of a rank of the job on a GPU that its driver calls `device`; nothing where the catalogue does not know it.
std::optional<plan::PeakRate> peak_of_device(const spec::JobSpec& spec, const std::string& device);

// What can be said of a run before it starts; empty members where nothing can. Earlier runs are those beside the plan's run
// directory.
record::Prediction predict_run(const spec::JobSpec& spec, const record::LaunchPlan& plan);

}  // namespace shardrun::launcher
