// Where the calibration of a job's cluster lies, and what it says of a job.
//
//   [cluster] config = "cpu.toml"   →  cpu.calibration.toml, beside it
//   else                            →  <state>/calibration/<host>.toml, or slurm-<partition>.toml under Slurm
// so it is found by rule, and no file that a person writes is ever changed.
//
// Thread rule: free functions of the main thread.
#pragma once

#include <optional>
#include <string>

#include "launcher/forecast/certainty.h"
#include "launcher/forecast/measured.h"
#include "runtime/base/result.h"
#include "runtime/record/launch_plan.h"
#include "runtime/spec/job_spec.h"

namespace shardrun::launcher {

// kInvalid when there is no place for it.
base::Result<std::string> calibration_path(const spec::JobSpec& spec);

// nullopt where nobody has calibrated; an error for a file that cannot be read.
base::Result<std::optional<MeasuredMachine>> load_calibration(const std::string& path);

// The job as certainty.h knows runs. kInvalid: its mesh cannot be solved.
base::Result<Run> run_on_calibrated(const spec::JobSpec& spec, const record::LaunchPlan& plan);

// The step of a trainer's job on a measured machine. kInvalid: why nothing can be said.
base::Result<StepForecast> forecast_measured(const spec::JobSpec& spec, const record::LaunchPlan& plan,
                                             const MeasuredMachine& machine);

// Holds, of the layouts that a job's [sharding], [batch] and [memory] may ask for with its global batch on its ranks, the one
// that is fastest there and fits, and how many there are. kInvalid: nothing can be said of any.
struct MeasuredChoice {
  Layout layout;
  StepForecast step;
  int64_t combinations = 0;
};
base::Result<MeasuredChoice> best_measured(const spec::JobSpec& spec, const record::LaunchPlan& plan,
                                           const MeasuredMachine& machine);

}  // namespace shardrun::launcher
