// What can be said of a run that may wait, run or be over.
//
// Reads the run directory, and asks Slurm about a job that is not over. Thread rule: free functions of the main thread.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "launcher/runs/common.h"
#include "launcher/view/metrics_log.h"
#include "launcher/view/timeline.h"
#include "runtime/base/result.h"
#include "runtime/record/launch_plan.h"
#include "runtime/record/run_dir.h"
#include "runtime/record/run_record.h"

namespace shardrun::launcher {

// What can be said of a run now: its record, or that it waits in Slurm's queue.
struct RunState {
  record::LaunchPlan plan;
  std::optional<record::RunRecord> record;
  std::string status;
  // Why Slurm, which alone knows what becomes of the run, could not be asked; "" where it was, need not be, or is not here.
  std::string unanswered;
};

// The record on the disk, or what is known of a run that left none.
base::Result<record::RunRecord> find_record(const record::RunDir& run);
base::Result<RunState> look_at(const record::RunDir& run, bool ask_slurm = true);
// Says whether nothing of the run is running or waiting any more; a run that Slurm may have queued again is not over while Slurm
// does not answer.
bool is_over(const RunState& state);
// Returns the exit code that a run which is over stands for: the job's own where it left a record.
int exit_code_of(const RunState& state);
// Returns the last line about a run that is over: how it ended and why, or what became of one that left no verdict.
std::string end_line(const RunState& state);
// Returns "failed, exit code 1", without a code for a run that has none yet.
std::string status_and_code(const RunState& state);
// Warns that Slurm does not answer, where it does not.
void say_unanswered(const RunState& state);
// Returns the error of a verb that found no record of the run: what it waits for or why it never started.
base::Error not_started(const RunState& state);
// Returns the losses and speeds of a run so far; an empty curve where there is nothing to read.
TrainingCurve read_curve(const record::RunDir& run);
// Returns the losses of a run so far at even distances, which takes no longer for a run of months.
std::vector<double> read_outline(const record::RunDir& run);
// Returns the last step of a run so far, from the end of its metrics.
std::optional<StepPoint> read_last_step(const record::RunDir& run);
// Returns what a run left behind, as its timeline is made from it. The state must have a record.
TimelineSources timeline_sources(const record::RunDir& run, RunState state);

// Looks once at many runs, of whose jobs Slurm is asked together: in a folder of years there are hundreds that never ended well.
class RunsLook {
 public:
  // `goes_on` is asked about every second while Slurm does not answer whether to wait any longer.
  explicit RunsLook(std::function<bool()> goes_on = {}) : goes_on_(std::move(goes_on)) {}
  base::Result<RunState> at(const record::RunDir& run);
  // Returns why Slurm could not be asked, and what that means; "" where it was, need not be, or is not here.
  std::string unanswered() const;

 private:
  std::function<bool()> goes_on_;
  std::optional<base::Result<std::set<std::string>>>
      known_;  // jobs that Slurm has not forgotten, or why it cannot be asked
};

// Looks again and again at one run. Its directory is read each time; Slurm, which knows of jobs that died without a word
// there, is asked kSlurmSeconds after its last answer.
class RunWatcher {
 public:
  static constexpr double kSlurmSeconds = 15.0;

  explicit RunWatcher(record::RunDir run) : run_(std::move(run)) {}
  // `goes_on` is called about every second while Slurm does not answer; it may glance(), and says whether to wait any longer.
  base::Result<RunState> look(const std::function<bool()>& goes_on = {});
  // As look(), with what Slurm said last.
  base::Result<RunState> glance() const;

 private:
  record::RunDir run_;
  std::optional<std::chrono::steady_clock::time_point> answered_;
  std::string slurm_status_, unanswered_;  // what it said last, or why it did not
};

}  // namespace shardrun::launcher
