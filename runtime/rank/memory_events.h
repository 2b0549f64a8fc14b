// MemoryEvents: tells whether the kernel has killed a process of this cgroup for lack of memory.
//
// The file is memory.events in cgroup v2 and memory.oom_control in v1; each counts under "oom_kill". Both count per
// cgroup: where ranks share one, a kill of either counts for both.
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
  // Watches the cgroup of this process; `root` is where cgroups are mounted.
  static MemoryEvents watch(const std::string& root = "/sys/fs/cgroup");

  // Says whether anything was killed since watch(); nullopt if no cgroup tells.
  std::optional<bool> has_killed() const;

 private:
  std::string path_;  // path of the file that counts; empty if there is none
  std::optional<int64_t> before_;
};

// Returns the file that counts for a process with this /proc/<pid>/cgroup; empty if there is no memory controller.
std::string memory_events_path(std::string_view cgroups, const std::string& root);
// Returns the number after "oom_kill " at the beginning of a line.
std::optional<int64_t> oom_kills(std::string_view text);

}  // namespace shardrun::rank
