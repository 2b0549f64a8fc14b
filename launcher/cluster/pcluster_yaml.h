// Renders a checked ClusterConfig as the YAML that `pcluster create-cluster` takes.
//
// Source: the configuration file of AWS ParallelCluster,
// https://docs.aws.amazon.com/parallelcluster/latest/ug/cluster-configuration-file-v3.html, as aws-parallelcluster
// 3.16.1 reads it. Thread rule: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "launcher/cluster/catalogue.h"
#include "launcher/cluster/spec.h"

namespace shardrun::launcher {

// The first line names `origin`, e.g. "cluster-configs/p5.toml".
std::string render_pcluster(const ClusterConfig& config, const Catalogue& catalogue, std::string_view origin);

}  // namespace shardrun::launcher
