// Earlier runs of a job, from which what is said of the next one learns.
//
// Thread rule: free functions of the main thread.
#pragma once

#include <string>
#include <vector>

#include "launcher/forecast/certainty.h"
#include "launcher/forecast/measured.h"
#include "runtime/base/result.h"
#include "runtime/record/launch_plan.h"
#include "runtime/spec/job_spec.h"

namespace shardrun::launcher {

struct EarlierRun {
  std::string directory;
  spec::JobSpec spec;
  record::LaunchPlan plan;
  double started = 0.0;       // Unix seconds
  double step_seconds = 0.0;  // the median
};

// Reads a run that went well with the built-in trainer. kInvalid: it did not, or has too few steps; else what reading says.
base::Result<EarlierRun> read_earlier_run(const std::string& directory);

// The newest such runs in a folder of runs, at most 16. What cannot be read, did not go well or is still running is no such run.
std::vector<EarlierRun> earlier_runs(const std::string& folder);

// What runs say of a machine that was calibrated, and who they are. Those that cannot be replayed there say nothing.
struct Learned {
  std::vector<Miss> misses;
  std::vector<std::string> from;
};
Learned learn(const std::vector<EarlierRun>& runs, const MeasuredMachine& machine);

}  // namespace shardrun::launcher
