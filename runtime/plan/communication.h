// What a communicator holds beside the buffers that it is given. For sums, that is what plugins/abi/comm_v1.h
// allows, the most that any plugin takes. For device buffers over a host communicator, it is pinned memory.
//
// Thread rule: pure functions.
#pragma once

#include <algorithm>
#include <cstdint>

#include "plugins/abi/comm_v1.h"

namespace shardrun::plan {

// At most this many operations of one communicator hold memory at a time; others wait without any.
constexpr int64_t kRunningSums = SHARDRUN_COMM_V1_RUNNING;

// Returns the bytes of one reduce_scatter that leaves `part_bytes` on each rank.
inline int64_t reduce_scatter_bytes(int group_size, int64_t part_bytes) {
  return static_cast<int64_t>(
      shardrun_comm_v1_sum_bytes(static_cast<uint32_t>(group_size), static_cast<uint64_t>(part_bytes)));
}

// Returns the bytes of one all_reduce of `bytes`.
inline int64_t all_reduce_bytes(int group_size, int64_t bytes) {
  const bool whole = static_cast<uint64_t>(bytes) <= SHARDRUN_COMM_V1_WHOLE_BYTES;
  return reduce_scatter_bytes(group_size, whole ? bytes : bytes / group_size + 8);
}

// How many ranks of the job the node has that has most, and how many CPUs there are for them.
struct NodeCrowd {
  int ranks = 1, cpus = 1;
};

// What a rank touches of the memory through which the ranks of a node pass bytes (comm_v1.h says how much at most): a ring of
// 512 KiB to all and one of 256 KiB to each other one, for as many operations as run at once. Which ranks of a group share a
// node is not known here; the contract's limit bounds what a large group is taken for.
inline int64_t node_bytes(int64_t rings, int64_t ring_bytes) {
  return kRunningSums * std::min(rings * ring_bytes, static_cast<int64_t>(SHARDRUN_COMM_V1_NODE_BYTES));
}
// Returns that of a group's gathers: the ring of each. Where each rank has a CPU the others read its part where it lies, and rings
// stay untouched (docs/decisions/0139).
inline int64_t node_gather_bytes(int64_t group_size, NodeCrowd crowd) {
  return group_size > 1 && group_size > crowd.cpus ? node_bytes(group_size, int64_t{512} << 10) : 0;
}
// Returns that of a group's sums: one ring from and one to each other. Where a node has two ranks there is one reader for all.
inline int64_t node_sum_bytes(int64_t group_size, NodeCrowd crowd) {
  return node_bytes(2 * (group_size - 1), int64_t{crowd.ranks <= 2 ? 512 : 256} << 10);
}

// Returns how many bytes of one rank's part a staged communicator moves at a time: 16 MiB over the whole group, but
// at least 64 KiB; no more than the largest part that it is ever given.
inline int64_t staging_piece_bytes(int group_size, int64_t largest_part_bytes) {
  constexpr int64_t kAll = int64_t{16} << 20, kLeast = int64_t{64} << 10, kUnit = 256;
  const int64_t piece = std::max(kLeast, kAll / (group_size + 1));
  const int64_t needed = std::max(largest_part_bytes, kUnit);
  return (std::min(piece, needed) + kUnit - 1) / kUnit * kUnit;
}

// Returns the pinned memory of a staged communicator: two pieces in turn, each with one rank's part and those of
// all.
inline int64_t staging_bytes(int group_size, int64_t piece_bytes) {
  return group_size > 1 ? 2 * (group_size + 1) * piece_bytes : 0;
}

// The staged communicators of a GPU may be given parts of this many bytes, as far as their memory depends on it.
inline constexpr int64_t kLargestStagedPart = int64_t{16} << 20;

}  // namespace shardrun::plan
