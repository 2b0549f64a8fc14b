// Layout: which ranks of a group share a node's memory, and who does what for whom because of it. The ofi plugin carries
// it out, and predictions count it (launcher/forecast/traffic.h).
//
// Every byte enters a node once: for each part of a buffer one rank of the node, its leader there, receives it and
// gives it to the others through memory. Leaders of different parts are different ranks, so that a node's network
// devices, one for each of its ranks (device.h), all carry their share.
//
// Thread rule: values and pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plugins/common/sum_tree.h"

namespace shardrun::common {

struct Layout {
  std::vector<uint32_t> node_of;               // by group rank; nodes are numbered as their first ranks come
  std::vector<uint32_t> index_of;              // by group rank: its place among the members of its node
  std::vector<std::vector<uint32_t>> members;  // by node: its group ranks, ascending
  std::vector<std::vector<Subtree>> roots;     // by node: the sums that it can make alone (sum_tree.h)
  uint32_t crowd = 1;                          // the most ranks that share a node's memory in the whole job
  uint32_t most_rings = 1;                     // the most streams of sums that a rank holds pieces of at once

  uint32_t size() const { return static_cast<uint32_t>(node_of.size()); }
  uint32_t nodes() const { return static_cast<uint32_t>(members.size()); }
  // Returns the rank on `node` that receives what rank `part` gives to all, and sums what that node gives to it.
  uint32_t leader(uint32_t node, uint32_t part) const;
  // Returns the parts of other nodes' ranks that `rank` leads on its own node, in the order in which it turns to
  // them: the next node first, so that not all turn to the same one.
  std::vector<uint32_t> led_by(uint32_t rank) const;
  // Returns whether some node has more than one member.
  bool shares_memory() const { return nodes() < size(); }
};

// `places` has for each group rank a number that is equal for ranks which share memory.
Layout make_layout(std::span<const uint64_t> places, uint32_t crowd);

// One flow of bytes between two nodes, as one of its two ranks carries it out.
struct NodeFlow {
  uint32_t peer = 0;  // the other rank, by its place in the group
  bool is_send = false;
  uint32_t part = 0;  // the rank whose slice of the buffer it is
  uint32_t root = 0;  // of a sum: which of the sending node's sums (Layout::roots)
  bool operator==(const NodeFlow&) const = default;
};

// Returns the flows of rank `mine` that bring every rank's part to every node: those that it receives, then those that it
// sends.
std::vector<NodeFlow> gather_flows(const Layout& layout, uint32_t mine);
// Returns its flows that bring every node's sums of a slice to the slice's owner: those that it sends, then those that it
// receives.
std::vector<NodeFlow> sum_flows(const Layout& layout, uint32_t mine);

// Up to so many bytes, which all nodes hold together, one rank of each node exchanges for all of them.
inline constexpr uint64_t kMostExchanged = 64 << 10;

// One message of an exchange in which every node gets every node's block. Blocks lie in the order of nodes.
struct NodeMessage {
  bool is_send = false;
  uint32_t node = 0;         // the other side
  uint32_t step = 0;         // a send of this step goes out when all receives of earlier steps are there
  uint32_t first_block = 0;  // blocks first_block, first_block + 1, … in the message
  uint32_t blocks = 0;
};

// Returns what node `mine` of `nodes` sends and receives: one message to each other node where there are few of them,
// else messages to nodes at distance 1, 2, 4, … with all that is known by then (Bruck et al. 1997); of two messages
// in a row to one node, the second holds the blocks from number 0 on.
std::vector<NodeMessage> plan_exchange(uint32_t nodes, uint32_t mine);

}  // namespace shardrun::common
