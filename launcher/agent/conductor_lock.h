// ConductorLock: who conducts a run, as the file conductor.lock of its run directory says, in one line:
//
//   host pid start-time run-id user slurm-job slurm-restarts boot-id pid-namespace
//
// The file is written under another name and linked into its place, so it is whole or not there. Older ones end behind
// slurm-restarts.
//
// Thread rule: free functions of one thread.
#pragma once

#include <sys/types.h>

#include <string>

#include "runtime/base/io.h"
#include "runtime/base/result.h"
#include "runtime/record/launch_plan.h"
#include "runtime/record/run_dir.h"

namespace shardrun::launcher {

struct LockHolder {
  std::string host, run_id, user, slurm_job;  // slurm_job: "-" outside of Slurm
  pid_t pid = 0;
  unsigned long long start_time = 0;   // start of the process, in clock ticks since boot
  long slurm_starts = 0;               // how often Slurm had started the job again
  std::string boot_id, pid_namespace;  // of its kernel; empty in an older lock
};

// Returns this process as a holder of the run's lock.
LockHolder this_holder(const record::LaunchPlan& plan);
std::string to_text(const LockHolder& holder);
// kRefused, with the mend, when the text names nobody; `path` is for the message.
base::Result<LockHolder> parse_holder(const std::string& text, const std::string& path);
// Returns "process 77 on n1 of ada, Slurm job 4711".
std::string describe(const LockHolder& holder);

// Whether a holder still lives, as far as this process can see.
enum class Life { kAlive, kGone, kUnknown };
// A holder on another machine, or in another container of this one, is not seen.
Life life_of(const LockHolder& holder);
// Returns whether we may take over from the holder: it is gone, or it is an earlier start of the Slurm job that `us` runs
// in; Slurm starts a job again only after its earlier start has ended.
bool may_take_over(const LockHolder& holder, const LockHolder& us);

std::string lock_path(const record::RunDir& run);
// kNotFound when nobody holds the lock; kIo; kRefused as parse_holder.
base::Result<LockHolder> read_holder(const record::RunDir& run);
// Puts `text` into the lock's place. kRefused when a lock is there; kIo. Leaves nothing behind when it fails.
base::Result<void> place_lock(const std::string& path, const std::string& text);
// Removes the lock if it still has this text. Returns false when somebody else was faster.
bool remove_lock(const std::string& path, const std::string& text);
// Sends the signal to the holder, never to another process that has its number now: kRefused when it is gone or runs
// elsewhere; kIo.
base::Result<void> signal_holder(const LockHolder& holder, int signal);

}  // namespace shardrun::launcher
