// RunDirectory: one conductor's hold on a run directory (runtime/record/run_dir.h).
//
// The hold is the file conductor.lock (conductor_lock.h). It is taken over when its process is gone from this machine, or
// when it belongs to an earlier start of the Slurm job that we run in. Another job never takes it over. It is removed
// when the object is destroyed.
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
  // Succeeds while no other conductor has taken over, even when somebody removed the lock: then the epoch tells. kRefused
  // names the new holder; kNotFound when the run directory was removed; kIo when nobody can tell.
  base::Result<void> check_ours() const;
  // Returns the number of the attempt that is about to start; its folder exists from now on, and no earlier attempt
  // may publish anything (runtime/contract/epoch.h). Errors: those of check_ours().
  base::Result<int> begin_attempt();

 private:
  explicit RunDirectory(record::RunDir paths) : paths_(std::move(paths)) {}
  base::Result<void> lock(const record::LaunchPlan& plan);

  record::RunDir paths_;
  std::string lock_text_;  // what we wrote; empty if we hold no lock
  int attempt_ = -1;       // the one that we began last
};

}  // namespace shardrun::launcher
