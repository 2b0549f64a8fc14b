// MemoryEvents: whether the kernel has killed something of this process's cgroup for lack of memory.
//
// cgroup v2: memory.events, v1: memory.oom_control; each counts under "oom_kill". Both count per cgroup: where ranks
// share one, a kill of either counts for both.
// Source: https://docs.kernel.org/admin-guide/cgroup-v2.html and …/cgroup-v1/memory.html
//
// Thread rule: thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace shardrun::rank {

class MemoryEvents {
 public:
  // Of this process; `root` is where cgroups are mounted.
  static MemoryEvents watch(const std::string& root = "/sys/fs/cgroup");

  // Since watch(); nullopt: no cgroup tells.
  std::optional<bool> has_killed() const;

 private:
  std::string path_;  // of the file that counts; empty: none
  std::optional<int64_t> before_;
};

// The file that counts for a process with this /proc/<pid>/cgroup; empty: the memory controller is not there.
std::string memory_events_path(std::string_view cgroups, const std::string& root);
// The number after "oom_kill " at the begin of a line.
std::optional<int64_t> oom_kills(std::string_view text);

}  // namespace shardrun::rank
