// LaunchPhases: what somebody who takes part in a launch did when: the conductor, or a rank's supervisor, which leaves a line of
// attempt_<n>/<node>.phases where `shardrun run --trace` asks for it.
//
// Thread rule: values and free functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shardrun::record {

// Each phase begins when the one before ends. Names have no blanks.
struct LaunchPhases {
  struct Phase {
    std::string name;
    double end = 0.0;  // Unix seconds
  };
  int global_rank = 0;
  double begin = 0.0;
  std::vector<Phase> phases;

  // Ends the phase `name` now.
  void mark(const char* name);
};

// Begins as long ago as this process has had the CPU, for nobody tells it when it was started.
LaunchPhases phases_of_this_process();

// "<rank> <begin> <name> <end> <name> <end> …", times in microseconds, with a newline. nullopt: it is no such line.
std::string to_line(const LaunchPhases& phases);
std::optional<LaunchPhases> parse_launch_phases(std::string_view line);

}  // namespace shardrun::record
