// Channel: a group of ranks as the engine knows it, with its operations that are waiting and that run.
//
// Thread rule: a member belongs to whoever holds the engine's turn, where a comment does not put it under its mutex.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "plugins/ofi/node_memory.h"
#include "plugins/ofi/operation.h"
#include "plugins/ofi/scratch.h"

namespace shardrun::ofi {

class Engine;
struct ActiveOperation;

struct Channel {
  Engine* engine = nullptr;
  uint32_t id = 0;
  Group group;
  uint64_t posted = 0;  // tickets given out; written by the channel's caller under the engine's mutex
  std::map<uint64_t, std::string> incomplete;  // ticket → name; under the engine's mutex
  std::set<uint32_t> begun;                    // kinds of operations; under the engine's mutex
  std::deque<std::unique_ptr<ActiveOperation>> queued;
  Scratch scratch;  // memory of the active operations
  // What its ranks of this node pass bytes through; operations use the two in turn. The engine's thread.
  std::array<std::unique_ptr<NodeRegion>, 2> regions;

  uint32_t size() const { return group.size(); }
};

struct ActiveOperation {
  std::unique_ptr<Operation> operation;
  Channel* channel = nullptr;
  std::byte* scratch = nullptr;
  // A barrier before the first operation of its kind on a channel, with that one's ticket, which starts only then. Meanwhile
  // connections to its peers are made, by global rank.
  bool is_opening = false;
  std::vector<uint32_t> peers;
  bool has_region = false;  // where it needs one: all ranks of the node have opened theirs
  bool stale = true;        // something changed since it was last looked at
  bool goes_on = false;     // it has done something, and may do more at once
  std::chrono::steady_clock::time_point started;
};

}  // namespace shardrun::ofi
