// ConductorLock: who conducts a run, as the newest of the files conductor.lock, conductor.lock.1, … of its run directory says,
// in one line:
//
//   host pid start-time run-id user slurm-job slurm-restarts boot-id pid-namespace attempt state machine-id
//
// They are a log: whoever takes the run over, begins an attempt or lets the run go writes the next file. It is written under
// another name and linked into its place, so it is whole or not there, and only one process can write it: who was asleep
// while another took over cannot begin an attempt any more, nor take the run from somebody whom it has not looked at. No
// file is changed or removed afterwards. Older ones end behind slurm-restarts or pid-namespace.
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
  std::string machine_id;              // of its installation; "-" where it has none, empty in an older lock
  int attempt = -1;                    // the newest that anybody has begun, as far as the log tells
  bool released = false;               // it has ended well
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
// A holder on another machine, or in another container of this one, is not seen, though it may have our host name. A machine
// that was started again is told from another by its machine id.
Life life_of(const LockHolder& holder);
// Returns whether we may take over from the holder: it is gone, or it is an earlier start of the Slurm job that `us` runs
// in; Slurm starts a job again only after its earlier start has ended.
bool may_take_over(const LockHolder& holder, const LockHolder& us);

// Returns the path of a file of the log, from 0.
std::string lock_path(const record::RunDir& run, int number);
// Returns the number of the newest file; -1 when there is none. kIo.
base::Result<int> newest_lock(const record::RunDir& run);
// kNotFound when nobody holds the run; kIo; kRefused as parse_holder.
base::Result<LockHolder> read_holder(const record::RunDir& run);
// Puts `text` into the place of a file of the log. kRefused when one is there; kIo. Leaves nothing behind when it fails.
base::Result<void> place_lock(const std::string& path, const std::string& text);
// Sends the signal to the holder, never to another process that has its number now: kRefused when it is gone or runs
// elsewhere; kIo.
base::Result<void> signal_holder(const LockHolder& holder, int signal);

}  // namespace shardrun::launcher
