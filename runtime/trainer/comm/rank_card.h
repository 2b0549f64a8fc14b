// RankCard: what ranks exchange before they can connect: where one runs, and its plugin's address.
//
// Thread rule: pure functions.
#pragma once

#include <string>

#include "runtime/base/result.h"
#include "runtime/trainer/comm/plugin_communicator.h"

namespace shardrun::comm {

std::string pack_card(int node_index, const std::string& node_name, const std::string& address);
// kCorrupt, about the rank, when these bytes are no card.
Result<PeerCard> unpack_card(const std::string& bytes, int global_rank);

}  // namespace shardrun::comm
