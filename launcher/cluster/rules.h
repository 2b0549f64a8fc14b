// What ParallelCluster or EC2 would refuse in a cluster whose values are each fine, said before either is asked.
//
// Source: the validators of aws-parallelcluster 3.16.1 (pcluster/validators, constants.py). They ask AWS where
// these rules ask the catalogue. A type that the catalogue lacks passes a rule that needs to know it, but never
// with EFA asked for.
// Thread rule: pure functions.
#pragma once

#include "launcher/cluster/catalogue.h"
#include "launcher/cluster/spec.h"
#include "runtime/base/result.h"

namespace shardrun::launcher {

// Reports the first rule that does not hold. Errors: kInvalid, "file:line:column: what; mend".
base::Result<void> check_cluster(const ClusterConfig& config, const Catalogue& catalogue);

// Reads the file, at most 1 MiB, and checks all of it.
base::Result<ClusterConfig> load_cluster(const std::string& path);

// Returns whether nodes of `resource` are started with EFA: as asked, or wherever the type has it and the queue
// has one subnet.
bool uses_efa(const Queue& queue, const ComputeResource& resource, const Catalogue& catalogue);

}  // namespace shardrun::launcher
