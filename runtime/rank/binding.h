// Binding: which CPUs a rank runs on.
//
// The CPUs that this process may use are divided among the ranks of its node: each gets cpus_per_rank whole cores
// where there are enough cores, else cpus_per_rank hardware threads, in the order of memory nodes and CPU numbers, so
// that a rank's CPUs are neighbours. Where ranks ask for more than there is, they take turns at the CPUs if that leaves equally many
// ranks on each; else they stay unbound, for a wrong binding is worse than none.
//
// Thread rule: free functions; bind_process changes the calling process.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/base/result.h"

namespace shardrun::rank {

// The usable hardware threads (Linux CPU numbers) of one core.
using Core = std::vector<int>;

// Returns the cores of the CPUs `allowed`, those of one memory node behind each other. `devices` is /sys/devices/system; a CPU of
// which nothing is said there is a core by itself.
std::vector<Core> cores_of(const std::vector<int>& allowed, const std::string& devices);

// Returns the CPUs of rank `local_rank` of `local_world_size`; empty when the machine has too few.
std::vector<int> slice_cpus(const std::vector<Core>& cores, int local_rank, int local_world_size,
                            int cpus_per_rank);

// The same where `cpus` are fewer than the ranks ask for: rank after rank, from the first CPU on and again; empty when the CPUs would
// not have equally many. `offered` are those of whoever started the ranks: where a rank's are others, they are its own, and empty.
std::vector<int> share_cpus(const std::vector<int>& cpus, const std::vector<int>& offered, int local_rank,
                            int local_world_size, int cpus_per_rank);

struct Binding {
  std::vector<int> cpus;  // empty: leave the process as it is
  std::string note;       // for the log, empty when there is nothing to say
};

// Decides for this process. A file is read for each of its cores, only when there are enough CPUs for all.
Binding choose_binding(int local_rank, int local_world_size, int cpus_per_rank);

// kIo when the kernel refuses.
base::Result<void> bind_process(const std::vector<int>& cpus);

}  // namespace shardrun::rank
