// What a process may use of its machine: the CPUs of its mask, and what its control groups leave of CPUs and memory, as in a
// container, a unit of systemd, or an allocation.
// Source: https://docs.kernel.org/admin-guide/cgroup-v2.html and …/cgroup-v1/
//
// Thread rule: free functions that read files of the kernel.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shardrun::base {

// Returns the CPUs that a process may use, 0: this one; none if the kernel does not say.
std::vector<int> allowed_cpus(pid_t process = 0);

// Returns how many CPUs those are, at most as many as the quota of its control groups; at least 1.
int usable_cpus();

// Returns the memory that this process may use, the machine's or what its control groups leave of it; nullopt where the kernel does
// not say.
std::optional<int64_t> usable_memory_bytes();

struct CgroupPlace {
  std::string mount;  // "/sys/fs/cgroup" in version 2, "/sys/fs/cgroup/memory" in version 1
  std::string path;   // below it, "/system.slice/x"
  bool is_unified = false;
};

// Returns the control group with the `controller` of a process with this /proc/<pid>/cgroup, the last resort being that of version 2.
// `root` is where they are mounted.
std::optional<CgroupPlace> find_cgroup(std::string_view cgroups, std::string_view controller,
                                       const std::string& root);

struct CgroupLimits {
  std::optional<int64_t> memory_bytes;
  std::optional<double> cpus;
};

// Returns the least limits of such a process' groups and of all that they lie in.
CgroupLimits cgroup_limits(std::string_view cgroups, const std::string& root);

}  // namespace shardrun::base
