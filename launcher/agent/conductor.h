// Conductor: drives the attempts of a run, from its run directory to its record.
//
//   claim the run directory → job.toml, plan.json, record.json (running) → the gate, once (launcher/gate)
//   → nodes and plan of the attempt (muster.h) → MASTER_ADDR/PORT → scheduler.run
//   → exit files and summary.json → verdict → record.json, results.json → again, where restart.h says so
//
// A directory that holds earlier attempts (a requeued job) is continued: the run gets the next free attempt_<n>,
// and the earlier attempts stay in the record.
//
// An attempt whose conductor has died, and whose ranks run on ([fault_tolerance] conductor_timeout), can be taken over: then the
// first of these attempts is that one, and the ranks are not started but waited for (attached_ranks.h).
//
// Thread rule: one thread calls; block the stop signals (stop_signals.h) before any thread exists.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launcher/plan/fewer_nodes.h"
#include "launcher/schedule/scheduler.h"
#include "runtime/base/result.h"
#include "runtime/record/launch_plan.h"
#include "runtime/record/run_dir.h"
#include "runtime/record/run_record.h"
#include "runtime/spec/job_spec.h"

namespace shardrun::launcher {

struct ConductRequest {
  const spec::JobSpec* spec = nullptr;
  std::string spec_text;  // the bytes of job.toml, exactly as given
  record::LaunchPlan plan;
  int stop_fd = -1;                             // signalfd, borrowed; -1: nobody can stop us
  double launch_time = 0.0;                     // Unix seconds when shardrun began
  std::optional<record::Prediction> predicted;  // goes into the record
  // Returns the bytes that a rank was to hold at most. Asked once, when the ranks have ended, since the answer takes some
  // milliseconds. May be empty.
  std::function<std::optional<int64_t>()> predicted_memory_bytes;
  // Returns the most that a rank's device does by its datasheet, from the name that its driver gives it. May be
  // empty.
  std::function<std::optional<plan::PeakRate>(const std::string& device)> peak_of_device;
  // Is called before the ranks of each attempt start, e.g. to follow the logs.
  std::function<void(const record::RunDir&, int attempt)> on_start;
  // Is called after an attempt when the job is to be queued again (restart.h), with the nodes that it should not
  // get. What became of these, in words or "", or an error, is added to the verdict.
  std::function<base::Result<std::string>(const std::vector<std::string>& avoid)> requeue;
  PlanCheck check_plan;    // checks a plan with fewer nodes; may be empty
  bool take_over = false;  // the newest attempt, whose conductor has died
};

// Runs the attempts and returns the record, which is also on disk; its exit_code is the one to end with. A
// scheduler that could not start the ranks makes a record with status failed or refused, not an error. Errors: the
// run directory is in use (kRefused, naming the holder), belongs to another job, or cannot be written; there is no attempt to
// take over (kRefused).
base::Result<record::RunRecord> conduct(Scheduler& scheduler, const ConductRequest& request);

}  // namespace shardrun::launcher
