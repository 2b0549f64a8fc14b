// Installed: the versions on this machine of what a job may meet. They are looked up at run time; nothing is
// linked.
//
// Effect: loads shared libraries into this process to ask their version, and runs Slurm's commands.
// Thread rule: free functions of the main thread.
#pragma once

#include <string>
#include <vector>

namespace shardrun::launcher {

struct Component {
  std::string name;
  std::string version;  // empty: not found here
  std::string note;     // what follows from it; may be empty
};

// Returns libfabric, aws-ofi-nccl, NCCL, the NVIDIA driver, PMIx, Slurm and its PMIx plugins, in this order.
std::vector<Component> find_components();

// Says what ranks of this machine lack for the comm plugin nccl, and what to do; empty if nothing is missing as far
// as can be seen from here.
std::string missing_for_nccl();

// Finds the version in the bytes of the plugin: "Initializing aws-ofi-nccl 1.13.2-aws" → "1.13.2-aws"; empty if it
// is not there.
std::string plugin_version_in(const std::string& bytes);
// Parses the output of `srun --mpi=list` → "pmix pmix_v4"; empty when Slurm has none.
std::string pmix_plugins_in(const std::string& list);

}  // namespace shardrun::launcher
