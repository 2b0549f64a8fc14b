// ClusterConfig: what a cluster's TOML asks for, checked. It is the small description that `shardrun cluster
// render` turns into a configuration of AWS ParallelCluster, and that a job may name with [cluster] config.
//
// parse_cluster refuses as job specs are refused: "file:line:column: what is wrong; what to do". It checks each
// value alone; launcher/cluster/rules.h checks them together and against the catalogue. docs/cluster-spec.md has the
// grammar and an example.
// Thread rule: plain values.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace shardrun::launcher {

struct HeadNode {  // [head_node]
  std::string instance, subnet;
  std::string key;                           // name of the SSH key; empty: only through the session manager
  int disk_gib = 0;                          // size of the root volume; 0: the image's
  std::vector<std::string> security_groups;  // beside ParallelCluster's own
};

struct LoginNodes {                   // [login_nodes]: where users work, beside the head node
  std::string instance, subnet, key;  // subnet and key: the head node's, where they are empty
  int count = 1;
  std::vector<std::string> security_groups;
};

struct NodeScript {    // [on_node_configured]: runs as root on every node when it has started
  std::string script;  // s3://… or https://…
  std::vector<std::string> arguments;
};

struct SlurmSettings {                          // [slurm]
  int idle_minutes = 10;                        // a node without work for so long is given back; -1: never
  std::map<std::string, std::string> settings;  // settings of slurm.conf
};

struct Accounting {  // [accounting]
  std::string uri;   // host[:port] of a MySQL server
  std::string user;
  std::string password_secret;  // the ARN of a secret
  std::string database;         // if it is empty, it is named as the cluster
};

enum class StorageKind { kFsxLustre, kEfs, kEbs, kFsxOpenZfs };

struct Storage {  // [[storage]]
  StorageKind kind = StorageKind::kFsxLustre;
  std::string name, mount;
  std::string id;  // id of a file system that exists; then the rest is not given
  int64_t capacity_gib = 0;
  std::string deployment;  // for Lustre
  std::string volume;      // for EBS: gp3, io2, …
  int64_t throughput = 0;  // for Lustre: MB/s for each TiB; for EFS: MiB/s, provisioned
  bool keep = false;       // whether it stays when the cluster is deleted
};

enum class Capacity { kOnDemand, kSpot, kCapacityBlock };

struct ComputeResource {  // [[queue.resource]], or the queue's own keys
  std::string name;
  std::vector<std::string> instances;  // one type, or several alike
  int min_count = 0, max_count = 0;
  std::optional<bool> efa;  // absent: wherever the type has it and the queue one subnet
  double spot_price =
      0.0;            // the most that is paid for a spot node's hour, in dollars; 0: the price on demand
  std::string label;  // where its keys stand: "queue[0]" or "queue[0].resource[1]"
};

struct Queue {  // [[queue]]
  std::string name;
  Capacity capacity = Capacity::kOnDemand;
  std::vector<std::string> subnets;
  std::string reservation, reservation_group;  // an id, or the ARN of a resource group
  std::optional<bool> placement_group;         // absent: with EFA, unless a reservation brings its own
  std::string placement_group_name;            // name of one that exists
  bool public_ip = false;
  std::vector<std::string> security_groups;  // beside ParallelCluster's own
  bool exclusive = false;                    // one job per node
  bool gpu_health_check = false;             // DCGM before each job
  std::string custom_ami;
  std::vector<ComputeResource> resources;
  std::string label;  // "queue[0]"
};

struct ClusterConfig {
  std::string name, region, os, custom_ami;
  std::vector<std::string> s3_read, s3_write;  // buckets that the nodes may use
  std::vector<std::string> policies;           // ARNs of IAM policies that the nodes get
  bool detailed_monitoring = false;
  HeadNode head;
  std::optional<LoginNodes> login;
  NodeScript on_node_configured;
  SlurmSettings slurm;
  std::optional<Accounting> accounting;
  std::vector<Storage> storage;
  std::vector<Queue> queues;
  std::map<std::string, std::string> tags;

  std::map<std::string, std::string> origins;  // "queue[0].min_count" → "cluster.toml:20:13"
};

// Errors: kInvalid, "file:line:column: what; mend".
base::Result<ClusterConfig> parse_cluster(std::string_view text, std::string_view file_name);

}  // namespace shardrun::launcher
