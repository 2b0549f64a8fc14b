#include "runtime/trainer/comm/rank_card.h"

#include <cstdint>
#include <cstring>
#include <functional>

#include <fmt/format.h>

namespace shardrun::comm {
namespace {

// Before the node's name and the address.
struct CardHead {
  uint32_t node_index;
  uint32_t name_bytes;
};

}  // namespace

std::string pack_card(int node_index, const std::string& node_name, const std::string& address) {
  const CardHead head{static_cast<uint32_t>(node_index), static_cast<uint32_t>(node_name.size())};
  return std::string(reinterpret_cast<const char*>(&head), sizeof(head)) + node_name + address;
}

Result<PeerCard> unpack_card(const std::string& bytes, int global_rank) {
  CardHead head;
  if (bytes.size() >= sizeof(head)) std::memcpy(&head, bytes.data(), sizeof(head));
  if (bytes.size() < sizeof(head) || bytes.size() - sizeof(head) < head.name_bytes) {
    return base::Error(base::Code::kCorrupt, fmt::format("rank {} published {} bytes that are no address",
                                                         global_rank, bytes.size()))
        .about({global_rank});
  }
  PeerCard card;
  card.node_name = bytes.substr(sizeof(head), head.name_bytes);
  card.address = bytes.substr(sizeof(head) + head.name_bytes);
  // Under mpirun every rank believes that it is on node 0, and under one launcher names could repeat: both together
  // tell nodes apart.
  card.node_id = std::hash<std::string>()(fmt::format("{}/{}", head.node_index, card.node_name));
  return card;
}

}  // namespace shardrun::comm
