// RunDirectory: one conductor's hold on a run directory (runtime/record/run_dir.h).
//
// The hold is the file conductor.lock, made with O_EXCL: "host pid start-time run-id user slurm-job
// slurm-restarts". It is taken over when its process is gone from this host, or when it belongs to an earlier start
// of the Slurm job that we run in: Slurm starts a job again only after its earlier start has ended. Another job
// never takes it over. It is removed when the object is destroyed.
//
// Thread rule: thread-compatible.
#pragma once

#include <string>
#include <string_view>

#include "runtime/base/result.h"
#include "runtime/record/launch_plan.h"
#include "runtime/record/run_dir.h"

namespace shardrun::launcher {

class RunDirectory {
 public:
  // Creates the folder where needed. kRefused names the holder of a directory that is in use, or says that the
  // directory belongs to a job with another spec; kIo otherwise.
  static base::Result<RunDirectory> claim(const record::LaunchPlan& plan, std::string_view spec_text);
  RunDirectory(RunDirectory&& other) noexcept;
  RunDirectory& operator=(RunDirectory&&) = delete;
  ~RunDirectory();

  const record::RunDir& paths() const { return paths_; }
  // Returns false when another conductor has taken over, as after a requeue behind our back.
  bool is_still_ours() const;
  // Returns the number of the attempt that is about to start; its folder exists from now on, and no earlier attempt
  // may publish anything (runtime/contract/epoch.h).
  base::Result<int> begin_attempt();

 private:
  explicit RunDirectory(record::RunDir paths) : paths_(std::move(paths)) {}
  std::string lock_path() const { return paths_.root + "/conductor.lock"; }
  base::Result<void> lock(const record::LaunchPlan& plan);

  record::RunDir paths_;
  std::string lock_text_;  // what we wrote; empty if we hold no lock
};

// Says whether nobody conducts the run any more, as far as this machine can tell: there is no lock, or its process was one of
// this machine and is gone. A run whose conductor lives elsewhere counts as conducted.
bool is_abandoned(const record::RunDir& run);

}  // namespace shardrun::launcher
