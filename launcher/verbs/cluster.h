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
  bool yes = false;  // delete without a question
};

// The YAML of `pcluster create-cluster`.
int cluster_render(const ClusterOptions& options, const CommonOptions& common);

}  // namespace shardrun::launcher
