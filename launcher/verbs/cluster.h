// The verbs below `shardrun cluster`: a cluster's description to a configuration, and the clusters of AWS ParallelCluster.
//
// Thread rule: called once, from the main thread.
#pragma once

#include <string>

#include "launcher/verbs/common.h"

namespace shardrun::launcher {

struct ClusterOptions {
  std::string spec;    // a cluster's TOML, for render and create
  std::string output;  // of render: a file in the place of stdout
  std::string name;    // of a cluster, for describe and delete
  std::string region;  // empty: pcluster's own choice
  bool wait = false;   // show progress until the end
  bool dry_run = false;
  bool yes = false;           // delete indeed
  int every_seconds = 15;     // between two looks of wait
  int timeout_seconds = 300;  // for each answer of pcluster
};

// The YAML of `pcluster create-cluster`.
int cluster_render(const ClusterOptions& options, const CommonOptions& common);
// With wait: kExitInfrastructure when it could not be made; 3 when AWS refuses.
int cluster_create(const ClusterOptions& options, const CommonOptions& common);
int cluster_describe(const ClusterOptions& options, const CommonOptions& common);
int cluster_list(const ClusterOptions& options, const CommonOptions& common);
int cluster_delete(const ClusterOptions& options, const CommonOptions& common);
// The queues of the Slurm cluster that this machine belongs to.
int cluster_queues(const CommonOptions& common);

}  // namespace shardrun::launcher
