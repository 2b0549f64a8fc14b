// Descendants: finds, ends and measures the processes below this one, also those that left their session or process
// group or whose parent has died.
//
// Thread rule: one thread calls.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <set>

#include "runtime/base/result.h"

namespace shardrun::base {

// While it lives, every orphan below this process becomes our child (PR_SET_CHILD_SUBREAPER), so that it can be
// found. Children that existed before are left alone, with all that is below them.
class DescendantReaper {
 public:
  // `unseen`: children of ours that waitpid() passes over, which are left alone, too. kIo when the kernel refuses.
  static Result<DescendantReaper> start(std::set<pid_t> unseen = {});
  DescendantReaper(DescendantReaper&& other) noexcept;
  DescendantReaper& operator=(DescendantReaper&&) = delete;
  ~DescendantReaper();

  // SIGKILLs every process below us and reaps our own children until none is left. Returns false if some were still
  // there after `limit` (a process in an uninterruptible system call). Costs one look at our children when there is none.
  bool kill_all(std::chrono::milliseconds limit);
  // Collects orphans that have ended, so that a long job does not gather zombies; leaves `keep` alone.
  void collect_orphans(const std::set<pid_t>& keep);

 private:
  DescendantReaper() = default;
  std::set<pid_t> before_;  // our children when we started, and the unseen
  bool active_ = true;
  int was_subreaper_ = 0;
};

// Returns what a process does, in the kernel's letters: R runs or waits for a CPU, D waits for a file, T is stopped; '?' when it is
// gone (proc(5), the third field of /proc/<pid>/stat).
char process_state(pid_t pid);

// Returns the bytes of memory that a process and all below it have in RAM; what they share counts for each. 0 when
// it is gone.
int64_t resident_bytes_of_tree(pid_t root);

}  // namespace shardrun::base
