// What the C face of a communication plugin gives its engine: how to open, who the others are, what to carry out.
//
// Thread rule: values.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace shardrun::common {

// The fields of shardrun_comm_config, with their defaults.
struct OpenOptions {
  std::string provider;
  std::string interface_name;                     // empty: the plugin chooses
  uint32_t local_world_size = 0, node_count = 0;  // 0: unknown
  uint32_t local_rank = 0;
  int device_index = -1;                      // -1: none is named
  uint32_t channel_count = 0;                 // 0: unknown
  std::chrono::milliseconds timeout{300000};  // for what an operation needs before it can start
};

// A shardrun_comm_peer whose memory is its own.
struct Peer {
  std::vector<std::byte> address;
  std::string node_name;
  uint64_t node_id = 0;
};

enum class Kind {
  kAllGather,
  kReduceScatter,
  kReduceScatterBf16,
  kAllReduceFloat,
  kAllReduceDouble,
  kAllReduceBf16,
  kBroadcast,
  kBarrier,
  kAllToAll
};

// One operation among the ranks of a channel. in and out are the same buffer where comm_v1.h has only one.
struct Collective {
  Kind kind = Kind::kBarrier;
  const void* in = nullptr;
  void* out = nullptr;
  uint64_t count = 0;  // bytes (all_gather, broadcast) or elements; of one rank where ranks' parts differ
  uint32_t root = 0;
  const uint64_t* in_bytes = nullptr;  // of all_to_all: for each member, until start() has returned
  const uint64_t* out_bytes = nullptr;
};

}  // namespace shardrun::common
