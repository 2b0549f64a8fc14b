// Process tree: starting a rank's process from a launcher that has threads, and making sure that nothing
// below us is left.
//
// Thread rule: one thread calls.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <set>
#include <string>
#include <vector>

#include "runtime/base/io.h"
#include "runtime/base/result.h"

namespace shardrun::launcher {

struct Process {
  pid_t pid = -1;
  base::UniqueFd pidfd;
};

// Starts `program` in its own session with exactly this environment ("NAME=value"), no signal blocked or
// ignored, and /dev/null as stdin. posix_spawn: safe in a process with threads. kIo names the program.
base::Result<Process> start_process(const std::string& program, const std::vector<std::string>& environment);

// While it lives, every orphan below this process becomes our child (PR_SET_CHILD_SUBREAPER), so that it can
// be found. Children that existed before are left alone.
class DescendantReaper {
 public:
  static base::Result<DescendantReaper> start();
  DescendantReaper(DescendantReaper&& other) noexcept;
  DescendantReaper& operator=(DescendantReaper&&) = delete;
  ~DescendantReaper();

  // SIGKILLs every process below us and reaps our own children until none is left. False if some were still
  // there at the deadline (a process in an uninterruptible system call).
  bool kill_all(std::chrono::milliseconds limit);
  // Collects orphans that have ended, so that a long job does not gather zombies; leaves `keep` alone.
  void collect_orphans(const std::set<pid_t>& keep);

 private:
  DescendantReaper() = default;
  std::set<pid_t> before_;  // our children when we started
  bool active_ = true;
  int was_subreaper_ = 0;
};

}  // namespace shardrun::launcher
