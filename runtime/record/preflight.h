// Preflight: what the nodes of an allocation find out before step 0, and what the launcher made of it.
//
// One process a rank (`shardrun-rank preflight`) runs on every node, spares too. The first of a node writes
// <folder>/<node>.json with what it found out alone, then all measure the network together, and the first of all writes
// <folder>/measured.json. launcher/gate judges. docs/decisions/0019 says why.
//
// Thread rule: values and pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace shardrun::record {

using base::Result;

struct GpuFacts {
  int index = 0;
  std::string name;
  std::vector<std::string> faults;  // in words; empty: healthy
};

// What a node knows of itself.
struct NodeFacts {
  std::string node;
  std::string checkpoint_folder;  // absolute; empty: the job writes none that we know of
  int64_t free_bytes = 0;         // of its file system, for us
  int64_t needed_bytes = 0;       // by the checkpoints to come
  std::string disk_error;         // why the free bytes are not known
  std::string provider_error;     // why the comm plugin does not open; empty: it does
  std::vector<GpuFacts> gpus;     // only where the job asks for some
  std::string gpu_error;          // why they are not known
  // The variables of networks (is_network_variable), as the ranks will see them.
  std::map<std::string, std::string> variables;
  std::string network_error;       // why the node could not measure with the others
  std::vector<int> network_ranks;  // global ones that did not answer it or are lost
};

// By how much a node's clock is ahead of the first node's: somewhere between the two, in seconds.
struct ClockOffset {
  std::string node;
  double low = 0.0, high = 0.0;
};

// The all-reduce of two nodes' ranks alone.
struct PairBandwidth {
  std::string left, right;
  double bytes_per_second = 0.0;
};

// What the nodes measured together. Bandwidths are those of a bus: 2 (n − 1) / n × bytes / seconds of n ranks.
struct Measurement {
  std::string provider;  // "shm+tcp"
  int ranks = 0;
  int64_t bytes = 0;              // of the all-reduce that was timed
  double bytes_per_second = 0.0;  // over all ranks; 0: there was one rank only
  std::vector<ClockOffset> clocks;
  std::vector<PairBandwidth> pairs;  // neighbours in a ring of nodes; empty where nothing was suspicious
};

// A node that takes no part, and why.
struct ExcludedNode {
  std::string node;
  std::string kind;  // "disk", "provider", "gpu", "network", "run_directory", "silent"
  std::string reason;
};

// What the record keeps of an attempt's preflight.
struct PreflightNote {
  double seconds = 0.0;
  std::optional<double> bytes_per_second, usual_bytes_per_second;
  std::vector<ExcludedNode> excluded;
  std::vector<std::string> warnings;
};

// Less than this share of what is usual is slow.
inline constexpr double kSlowShare = 0.5;

// A node by the better of its two pairs.
struct NodeBandwidth {
  std::string node;
  double bytes_per_second = 0.0;
};
// Returns the bandwidths of all nodes in `pairs`, in the order of the ring.
std::vector<NodeBandwidth> node_bandwidths(const std::vector<PairBandwidth>& pairs);
// The lower median; 0 of none.
double median_bandwidth(const std::vector<NodeBandwidth>& nodes);
// Whether a node has less than `share` of the median one.
bool any_stands_out(const std::vector<PairBandwidth>& pairs, double share);

// FI_*, NCCL_* and RDMAV_*: variables that carry no secrets and that `shardrun doctor` has an opinion about.
bool is_network_variable(std::string_view name);

std::string to_json(const NodeFacts& facts);
std::string to_json(const Measurement& measured);
// kCorrupt.
Result<NodeFacts> parse_node_facts(std::string_view json);
Result<Measurement> parse_measurement(std::string_view json);

}  // namespace shardrun::record
