#include "runtime/record/preflight.h"

#include <algorithm>
#include <utility>

#include "runtime/base/json_fields.h"
#include "runtime/base/median.h"

namespace shardrun::record {

std::vector<NodeBandwidth> node_bandwidths(const std::vector<PairBandwidth>& pairs) {
  std::vector<NodeBandwidth> nodes;
  for (const PairBandwidth& pair : pairs) nodes.push_back({pair.left, pair.bytes_per_second});
  for (const PairBandwidth& pair : pairs) {
    for (NodeBandwidth& node : nodes) {
      if (node.node == pair.right)
        node.bytes_per_second = std::max(node.bytes_per_second, pair.bytes_per_second);
    }
  }
  return nodes;
}

double median_bandwidth(const std::vector<NodeBandwidth>& nodes) {
  if (nodes.empty()) return 0.0;
  std::vector<double> values;
  for (const NodeBandwidth& node : nodes) values.push_back(node.bytes_per_second);
  return base::lower_median(std::move(values));
}

bool any_stands_out(const std::vector<PairBandwidth>& pairs, double share) {
  const std::vector<NodeBandwidth> nodes = node_bandwidths(pairs);
  const double limit = share * median_bandwidth(nodes);
  return std::any_of(nodes.begin(), nodes.end(),
                     [&](const NodeBandwidth& node) { return node.bytes_per_second < limit; });
}

bool is_network_variable(std::string_view name) {
  return name.starts_with("FI_") || name.starts_with("NCCL_") || name.starts_with("RDMAV_");
}

void fields(auto& visit, base::Is<GpuFacts> auto& gpu) {
  visit("index", gpu.index);
  visit("name", gpu.name);
  visit.later("faults", gpu.faults);
}

void fields(auto& visit, base::Is<NodeFacts> auto& facts) {
  visit.version(1);
  visit("node", facts.node);
  visit("checkpoint_folder", facts.checkpoint_folder);
  visit("free_bytes", facts.free_bytes);
  visit("needed_bytes", facts.needed_bytes);
  visit("disk_error", facts.disk_error);
  visit("provider_error", facts.provider_error);
  visit("gpus", facts.gpus);
  visit("gpu_error", facts.gpu_error);
  visit.later("variables", facts.variables);
  visit("network_error", facts.network_error);
  visit.later("network_ranks", facts.network_ranks);
}

void fields(auto& visit, base::Is<ClockOffset> auto& clock) {
  visit("node", clock.node);
  visit("low", clock.low);
  visit("high", clock.high);
}

void fields(auto& visit, base::Is<PairBandwidth> auto& pair) {
  visit("left", pair.left);
  visit("right", pair.right);
  visit("bytes_per_second", pair.bytes_per_second);
}

void fields(auto& visit, base::Is<Measurement> auto& measured) {
  visit.version(1);
  visit("provider", measured.provider);
  visit("ranks", measured.ranks);
  visit("bytes", measured.bytes);
  visit("bytes_per_second", measured.bytes_per_second);
  visit("clocks", measured.clocks);
  visit("pairs", measured.pairs);
}

std::string to_json(const NodeFacts& facts) {
  return base::json_of(facts);
}

Result<NodeFacts> parse_node_facts(std::string_view text) {
  return base::parse_fields<NodeFacts>(text, "a node's facts");
}

std::string to_json(const Measurement& measured) {
  return base::json_of(measured);
}

Result<Measurement> parse_measurement(std::string_view text) {
  return base::parse_fields<Measurement>(text, "measured.json");
}

}  // namespace shardrun::record
