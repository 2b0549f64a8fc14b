// RunDirectory: one conductor's hold on a run directory (runtime/record/run_dir.h).
//
// The hold is the newest file of a log (conductor_lock.h). It is taken over when its process is gone from this machine, or
// when it belongs to an earlier start of the Slurm job that we run in. Another job never takes it over. It is let go when
// the object is destroyed. What the conductor publishes about the run it writes in a folder of its attempt's, which the next
// attempt's conductor takes away.
//
// Thread rule: thread-compatible.
#pragma once

#include <string>
#include <string_view>

#include "launcher/agent/conductor_lock.h"
#include "runtime/base/io.h"
#include "runtime/base/result.h"
#include "runtime/record/launch_plan.h"
#include "runtime/record/run_dir.h"

namespace shardrun::launcher {

class RunDirectory {
 public:
  // Creates the folder where needed. kRefused names the holder of a directory that is in use, or says that the
  // directory belongs to a job with another spec or to another run; kIo otherwise.
  static base::Result<RunDirectory> claim(const record::LaunchPlan& plan, std::string_view spec_text);
  // Takes over a run whose newest attempt has lost its conductor; the attempt goes on. kRefused where a conductor lives, or may
  // live; where none was lost: the run has ended, or no attempt has begun; and as claim().
  static base::Result<RunDirectory> take_over(const record::LaunchPlan& plan, std::string_view spec_text);
  RunDirectory(RunDirectory&& other) noexcept;
  RunDirectory& operator=(RunDirectory&&) = delete;
  ~RunDirectory();

  const record::RunDir& paths() const { return paths_; }
  // Returns the newest attempt that this conductor has begun or taken over; -1: none.
  int attempt() const { return us_.attempt; }
  // Succeeds while no other conductor has taken over, even when somebody removed the lock: then the epoch tells. kRefused
  // names the new holder; kNotFound when the run directory was removed; kIo when nobody can tell.
  base::Result<void> check_ours() const;
  // Returns the number of the attempt that is about to start; its folder exists from now on, and no earlier attempt
  // may publish anything (runtime/contract/epoch.h). Errors: those of check_ours().
  base::Result<int> begin_attempt();
  // Replaces a file of the run directory while the attempt that was begun is the newest; kRefused afterwards, whenever that
  // is noticed: the file is then as the newer attempt left it. kIo.
  base::Result<void> publish(const std::string& path, std::string_view text,
                             base::Durability durability) const;

 private:
  explicit RunDirectory(record::RunDir paths) : paths_(std::move(paths)) {}
  base::Result<void> lock(const record::LaunchPlan& plan, bool only_lost);
  base::Result<void> check_spec(std::string_view spec_text) const;
  base::Result<void> check_identity(const record::LaunchPlan& plan) const;
  base::Result<void> append(LockHolder entry);
  base::Error replaced(const std::string& by_whom) const;
  std::string desk() const;

  record::RunDir paths_;
  LockHolder us_;    // what our newest file of the log says
  int number_ = -1;  // its number; -1: we hold nothing
};

}  // namespace shardrun::launcher
