#include "launcher/forecast/traffic.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "plugins/abi/comm_v1.h"
#include "plugins/common/layout.h"

namespace shardrun::launcher {
namespace {

using common::Layout;

Layout layout_of(const OnNodes& spread) {
  const int64_t per_node = (spread.ranks + spread.nodes - 1) / spread.nodes;
  std::vector<uint64_t> places;
  for (int64_t rank = 0; rank < spread.ranks; ++rank)
    places.push_back(static_cast<uint64_t>(rank / per_node));
  return common::make_layout(places, static_cast<uint32_t>(per_node));
}

// Blocks that each node puts into an exchange in which one rank speaks for it; none: the operation is no such one.
std::vector<double> exchanged_blocks(CollectiveKind kind, const Layout& layout, double bytes) {
  std::vector<double> blocks;
  if (kind == CollectiveKind::kReduceScatter) return {};
  if (kind == CollectiveKind::kAllReduce && bytes > static_cast<double>(SHARDRUN_COMM_V1_WHOLE_BYTES))
    return {};
  for (uint32_t node = 0; node < layout.nodes(); ++node) {
    const double parts = kind == CollectiveKind::kAllReduce
                             ? static_cast<double>(layout.roots[node].size())
                             : static_cast<double>(layout.members[node].size()) / layout.size();
    blocks.push_back(parts * bytes);
  }
  const double all = std::accumulate(blocks.begin(), blocks.end(), 0.0);
  return all <= static_cast<double>(common::kMostExchanged) ? blocks : std::vector<double>();
}

Traffic of_exchange(const Layout& layout, uint32_t node, const std::vector<double>& blocks) {
  Traffic traffic;
  for (const common::NodeMessage& message : common::plan_exchange(layout.nodes(), node)) {
    if (!message.is_send) continue;
    ++traffic.messages;
    for (uint32_t block = message.first_block; block < message.first_block + message.blocks; ++block)
      traffic.bytes += blocks[block];
  }
  return traffic;
}

Traffic of_flows(CollectiveKind kind, const Layout& layout, uint32_t node, double slice) {
  Traffic traffic;
  const auto add = [&](const std::vector<common::NodeFlow>& flows) {
    const int64_t sent =
        std::count_if(flows.begin(), flows.end(), [](const auto& flow) { return flow.is_send; });
    traffic.messages += sent;
    traffic.bytes += static_cast<double>(sent) * slice;
  };
  for (const uint32_t rank : layout.members[node]) {
    if (kind != CollectiveKind::kAllGather) add(common::sum_flows(layout, rank));
    if (kind != CollectiveKind::kReduceScatter) add(common::gather_flows(layout, rank));
  }
  return traffic;
}

}  // namespace

Traffic traffic_of(CollectiveKind kind, const OnNodes& spread, double bytes) {
  if (spread.nodes <= 1) return {};
  const Layout layout = layout_of(spread);
  const std::vector<double> blocks = exchanged_blocks(kind, layout, bytes);
  Traffic most;
  for (uint32_t node = 0; node < layout.nodes(); ++node) {
    const Traffic one = blocks.empty()
                            ? of_flows(kind, layout, node, bytes / static_cast<double>(spread.ranks))
                            : of_exchange(layout, node, blocks);
    if (one.bytes > most.bytes) most = one;
  }
  return most;
}

}  // namespace shardrun::launcher
