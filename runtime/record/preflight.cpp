#include "runtime/record/preflight.h"

#include <algorithm>
#include <utility>

#include "runtime/base/median.h"
#include "runtime/record/json_reader.h"

namespace shardrun::record {
namespace {

using nlohmann::json;

// Calls `read` with a reader of each object in the list `key`.
template <typename Read>
Result<void> for_each(const JsonReader& reader, const char* key, Read read) {
  const json* list = reader.member(key);
  if (list == nullptr || !list->is_array()) {
    return base::Error(base::Code::kCorrupt, fmt::format("\"{}\" is no list", key));
  }
  for (const json& item : *list) {
    JsonReader members(item, key);
    read(members, item);
    RETURN_IF_ERROR(members.finish());
  }
  return {};
}

}  // namespace

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

std::string to_json(const NodeFacts& facts) {
  json gpus = json::array();
  for (const GpuFacts& gpu : facts.gpus)
    gpus.push_back({{"index", gpu.index}, {"name", gpu.name}, {"faults", gpu.faults}});
  return dump_json({{"format_version", 1},
                    {"node", facts.node},
                    {"checkpoint_folder", facts.checkpoint_folder},
                    {"free_bytes", facts.free_bytes},
                    {"needed_bytes", facts.needed_bytes},
                    {"disk_error", facts.disk_error},
                    {"provider_error", facts.provider_error},
                    {"gpus", gpus},
                    {"gpu_error", facts.gpu_error},
                    {"variables", facts.variables},
                    {"network_error", facts.network_error},
                    {"network_ranks", facts.network_ranks}});
}

Result<NodeFacts> parse_node_facts(std::string_view text) {
  const auto object = parse_json(text, "a node's facts");
  if (!object) return object.error();
  JsonReader reader(*object, "a node's facts");
  NodeFacts facts;
  reader.read("node", facts.node);
  reader.read("checkpoint_folder", facts.checkpoint_folder);
  reader.read("free_bytes", facts.free_bytes);
  reader.read("needed_bytes", facts.needed_bytes);
  reader.read("disk_error", facts.disk_error);
  reader.read("provider_error", facts.provider_error);
  reader.read("gpu_error", facts.gpu_error);
  reader.read("network_error", facts.network_error);
  RETURN_IF_ERROR(reader.finish());
  RETURN_IF_ERROR(for_each(reader, "gpus", [&](JsonReader& members, const json& item) {
    GpuFacts gpu;
    members.read("index", gpu.index);
    members.read("name", gpu.name);
    if (item.contains("faults") && item["faults"].is_array()) {
      for (const json& fault : item["faults"])
        if (fault.is_string()) gpu.faults.push_back(fault.get<std::string>());
    }
    facts.gpus.push_back(std::move(gpu));
  }));
  if (const json* ranks = reader.member("network_ranks"); ranks != nullptr && ranks->is_array()) {
    for (const json& rank : *ranks)
      if (rank.is_number_integer()) facts.network_ranks.push_back(rank.get<int>());
  }
  if (const json* variables = reader.member("variables"); variables != nullptr && variables->is_object()) {
    for (const auto& [name, value] : variables->items())
      if (value.is_string()) facts.variables[name] = value.get<std::string>();
  }
  return facts;
}

std::string to_json(const Measurement& measured) {
  json clocks = json::array(), pairs = json::array();
  for (const ClockOffset& clock : measured.clocks)
    clocks.push_back({{"node", clock.node}, {"low", clock.low}, {"high", clock.high}});
  for (const PairBandwidth& pair : measured.pairs)
    pairs.push_back(
        {{"left", pair.left}, {"right", pair.right}, {"bytes_per_second", pair.bytes_per_second}});
  return dump_json({{"format_version", 1},
                    {"provider", measured.provider},
                    {"ranks", measured.ranks},
                    {"bytes", measured.bytes},
                    {"bytes_per_second", measured.bytes_per_second},
                    {"clocks", clocks},
                    {"pairs", pairs}});
}

Result<Measurement> parse_measurement(std::string_view text) {
  const auto object = parse_json(text, "measured.json");
  if (!object) return object.error();
  JsonReader reader(*object, "measured.json");
  Measurement measured;
  reader.read("provider", measured.provider);
  reader.read("ranks", measured.ranks);
  reader.read("bytes", measured.bytes);
  reader.read("bytes_per_second", measured.bytes_per_second);
  RETURN_IF_ERROR(reader.finish());
  RETURN_IF_ERROR(for_each(reader, "clocks", [&](JsonReader& members, const json&) {
    ClockOffset& clock = measured.clocks.emplace_back();
    members.read("node", clock.node);
    members.read("low", clock.low);
    members.read("high", clock.high);
  }));
  RETURN_IF_ERROR(for_each(reader, "pairs", [&](JsonReader& members, const json&) {
    PairBandwidth& pair = measured.pairs.emplace_back();
    members.read("left", pair.left);
    members.read("right", pair.right);
    members.read("bytes_per_second", pair.bytes_per_second);
  }));
  return measured;
}

}  // namespace shardrun::record
