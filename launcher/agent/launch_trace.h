// LaunchTrace: when what of a launch was done, as a file for ui.perfetto.dev: profile/attempt_<n>_launch.json.
//
// The conductor notes its own phases, the scheduler's step among them; each supervisor has left a line of its own.
//
// Thread rule: thread-compatible.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/record/launch_phases.h"
#include "runtime/record/run_dir.h"

namespace shardrun::launcher {

class LaunchTrace {
 public:
  // `begin`: Unix seconds when the conductor's first phase began.
  explicit LaunchTrace(double begin) { own_.begin = begin; }
  // Ends the conductor's phase `name` now.
  void mark(const char* name) { own_.mark(name); }
  // Writes the file of an attempt on these nodes, and begins the next attempt's phases. A supervisor that has left nothing, for it
  // was killed, is not in it. kIo.
  base::Result<void> write(const record::RunDir& run, int attempt, const std::vector<std::string>& nodes);

 private:
  record::LaunchPhases own_;
};

}  // namespace shardrun::launcher
