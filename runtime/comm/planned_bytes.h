// What a communicator holds for sums beside the buffers that it is given, by plugins/abi/comm_v1.h: most of all plugins.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "plugins/abi/comm_v1.h"

namespace shardrun::comm {

// Operations of one communicator that hold memory at a time, at most; others wait without.
constexpr int64_t kRunningSums = SHARDRUN_COMM_V1_RUNNING;

// One reduce_scatter that leaves `part_bytes` on each rank.
inline int64_t reduce_scatter_bytes(int group_size, int64_t part_bytes) {
  return static_cast<int64_t>(
      shardrun_comm_v1_sum_bytes(static_cast<uint32_t>(group_size), static_cast<uint64_t>(part_bytes)));
}

// One all_reduce of `bytes`.
inline int64_t all_reduce_bytes(int group_size, int64_t bytes) {
  const bool whole = static_cast<uint64_t>(bytes) <= SHARDRUN_COMM_V1_WHOLE_BYTES;
  return reduce_scatter_bytes(group_size, whole ? bytes : bytes / group_size + 8);
}

}  // namespace shardrun::comm
