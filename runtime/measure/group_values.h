// Brings together what the ranks of a group measured; and the clocks, and what is computed beside a measurement.
//
// Thread rule: free functions; the same calls on all ranks of the group.
#pragma once

#include <ctime>
#include <functional>
#include <vector>

#include "runtime/measure/layer_work.h"
#include "runtime/trainer/comm/communicator.h"

namespace shardrun::measure {

using base::Result;

inline Result<void> complete(comm::Communicator& group, Result<comm::Pending> pending) {
  RETURN_IF_ERROR(pending);
  return group.wait(*pending);
}

// Returns everybody's values by rank; each rank has equally many.
inline Result<std::vector<double>> gather_values(comm::Communicator& group, std::vector<double> mine) {
  std::vector<double> all(mine.size() * static_cast<size_t>(group.size()));
  RETURN_IF_ERROR(complete(group, group.all_gather(std::as_bytes(std::span<const double>(mine)),
                                                   std::as_writable_bytes(std::span<double>(all)))));
  return all;
}

// Returns the CPU seconds that this process's threads have had. What other programs take meanwhile is not in it.
inline double cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

inline double wall_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// What times are read from and what passes the time between them, or what a test puts in their place.
struct Clocks {
  std::function<double()> wall = wall_seconds, cpu = cpu_seconds;
  std::function<void()> work = layer_work();
};

}  // namespace shardrun::measure
