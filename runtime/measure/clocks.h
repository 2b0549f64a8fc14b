// The clocks of measurements.
//
// Thread rule: free functions.
#pragma once

#include <ctime>
#include <functional>

#include "runtime/measure/layer_work.h"

namespace shardrun::measure {

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
