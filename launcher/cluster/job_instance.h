// What a job takes from the machine that it names: ranks per node, CPUs per rank, GPUs, device and network.
//
// Thread rule: pure functions.
#pragma once

#include <string>
#include <vector>

#include "launcher/cluster/catalogue.h"
#include "launcher/cluster/spec.h"
#include "runtime/base/result.h"
#include "runtime/spec/job_spec.h"

namespace shardrun::launcher {

// Returns the overrides ("section.key=value") that give `spec` what it leaves open and `instance` decides:
//   resources.device          of the built-in trainer: "gpu" where the machine has NVIDIA's, else "cpu"
//   resources.gpus_per_node   all of NVIDIA's that the machine has; of the built-in trainer only when it trains on them
//   resources.ranks_per_node  one for each of these GPUs and each rank that shares one, else for each accelerator, or for
//                             each NeuronCore that a framework counts
//   resources.cpus_per_rank   the node's cores over its ranks
//   communication.plugin      of the built-in trainer on GPUs: "nccl" where several ranks have one each, else "ofi"
//   communication.provider    "efa", for the built-in trainer on several nodes of Slurm
// What the spec itself says is never changed. Errors: kInvalid, "file:line:column: what; mend", where the spec asks for GPUs
// that the machine lacks, and where the built-in trainer would leave accelerators alone without device = "cpu".
base::Result<std::vector<std::string>> instance_overrides(const spec::JobSpec& spec,
                                                          const Instance& instance);

// Returns the instance that `spec` names in [cluster] instance. Errors: kInvalid at the key's place, with
// the nearest name.
base::Result<const Instance*> find_job_instance(const spec::JobSpec& spec, const Catalogue& catalogue);

// Returns the instance of the queue of `config` that [resources] partition names, or of its first queue; null where
// the catalogue lacks it. Errors: kInvalid at the partition's place when the cluster has no such queue.
base::Result<const Instance*> find_queue_instance(const spec::JobSpec& spec, const ClusterConfig& config,
                                                  const Catalogue& catalogue);

}  // namespace shardrun::launcher
