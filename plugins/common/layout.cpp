#include "plugins/common/layout.h"

#include <algorithm>
#include <map>

namespace shardrun::common {
namespace {

// Up to this many nodes one message to each costs less than two rounds of fewer.
constexpr uint32_t kFewNodes = 8;

// The streams of sums that a rank holds pieces of: the other nodes' sums for its own part, its own node's, and its
// node's sums for the parts that it leads.
uint32_t rings_of(const Layout& layout, uint32_t rank, uint32_t all_roots) {
  const uint32_t node = layout.node_of[rank];
  const auto own = static_cast<uint32_t>(layout.roots[node].size());
  if (layout.members[node].size() == 1) return all_roots - own;
  return all_roots + static_cast<uint32_t>(layout.led_by(rank).size()) * own;
}

void add_message(std::vector<NodeMessage>* messages, const NodeMessage& message, uint32_t nodes) {
  const uint32_t before_end = std::min(message.blocks, nodes - message.first_block);
  messages->push_back(message);
  messages->back().blocks = before_end;
  if (before_end == message.blocks) return;
  messages->push_back(message);
  messages->back().first_block = 0;
  messages->back().blocks = message.blocks - before_end;
}

}  // namespace

uint32_t Layout::leader(uint32_t node, uint32_t part) const {
  if (node_of[part] == node) return part;
  return members[node][index_of[part] % members[node].size()];
}

std::vector<uint32_t> Layout::led_by(uint32_t rank) const {
  std::vector<uint32_t> led;
  const auto stride = static_cast<uint32_t>(members[node_of[rank]].size());
  for (uint32_t step = 1; step < nodes(); ++step) {
    const auto& others = members[(node_of[rank] + step) % nodes()];
    for (size_t index = index_of[rank]; index < others.size(); index += stride) led.push_back(others[index]);
  }
  return led;
}

Layout make_layout(std::span<const uint64_t> places, uint32_t crowd) {
  Layout layout;
  layout.crowd = crowd;
  std::map<uint64_t, uint32_t> nodes;
  for (const uint64_t place : places) {
    const uint32_t node = nodes.emplace(place, static_cast<uint32_t>(nodes.size())).first->second;
    if (node == layout.members.size()) layout.members.emplace_back();
    layout.index_of.push_back(static_cast<uint32_t>(layout.members[node].size()));
    layout.members[node].push_back(layout.size());
    layout.node_of.push_back(node);
  }
  uint32_t all_roots = 0;
  for (const auto& members : layout.members) {
    layout.roots.push_back(largest_subtrees(members, layout.size()));
    all_roots += static_cast<uint32_t>(layout.roots.back().size());
  }
  for (uint32_t rank = 0; rank < layout.size(); ++rank)
    layout.most_rings = std::max(layout.most_rings, rings_of(layout, rank, all_roots));
  return layout;
}

std::vector<NodeFlow> gather_flows(const Layout& layout, uint32_t mine) {
  std::vector<NodeFlow> flows;
  const uint32_t node = layout.node_of[mine], nodes = layout.nodes();
  for (const uint32_t part : layout.led_by(mine)) flows.push_back({.peer = part, .part = part});
  for (uint32_t step = 1; step < nodes; ++step) {
    const uint32_t other = (node + nodes - step) % nodes;
    flows.push_back({.peer = layout.leader(other, mine), .is_send = true, .part = mine});
  }
  return flows;
}

std::vector<NodeFlow> sum_flows(const Layout& layout, uint32_t mine) {
  std::vector<NodeFlow> flows;
  const uint32_t node = layout.node_of[mine], nodes = layout.nodes();
  for (const uint32_t part : layout.led_by(mine)) {
    for (uint32_t root = 0; root < layout.roots[node].size(); ++root)
      flows.push_back({.peer = part, .is_send = true, .part = part, .root = root});
  }
  for (uint32_t step = 1; step < nodes; ++step) {
    const uint32_t other = (node + nodes - step) % nodes;
    for (uint32_t root = 0; root < layout.roots[other].size(); ++root)
      flows.push_back({.peer = layout.leader(other, mine), .part = mine, .root = root});
  }
  return flows;
}

std::vector<NodeMessage> plan_exchange(uint32_t nodes, uint32_t mine) {
  std::vector<NodeMessage> messages;
  const bool few = nodes <= kFewNodes;
  uint32_t step = 0;
  for (uint32_t distance = 1; distance < nodes; distance = few ? distance + 1 : 2 * distance) {
    const uint32_t blocks = few ? 1 : std::min(distance, nodes - distance);
    const uint32_t to = (mine + nodes - distance) % nodes, from = (mine + distance) % nodes;
    add_message(&messages,
                {.is_send = false, .node = from, .step = step, .first_block = from, .blocks = blocks}, nodes);
    add_message(&messages, {.is_send = true, .node = to, .step = step, .first_block = mine, .blocks = blocks},
                nodes);
    if (!few) ++step;
  }
  return messages;
}

}  // namespace shardrun::common
