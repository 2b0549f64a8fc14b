// CheckpointHold: which run writes the checkpoints of a folder that several runs may name in [checkpoint] directory.
//
// The folder has a file holder.lock, in the form of conductor.lock, for as long as a run writes there. A second run is refused
// at its start: else it would take the first one's checkpoints over, and the first would train on and fail at its next save.
//
// Thread rule: thread-compatible.
#pragma once

#include <functional>
#include <string>

#include "launcher/agent/conductor_lock.h"
#include "runtime/base/result.h"
#include "runtime/record/launch_plan.h"

namespace shardrun::launcher {

class CheckpointHold {
 public:
  // Says of a holder on another machine whether its run is over all the same, as Slurm knows of its jobs.
  using IsOver = std::function<bool(const LockHolder& holder)>;

  // Makes the folder where it is missing, and holds it for the plan's run until the object goes. kRefused names the run that has
  // it; kIo.
  static base::Result<CheckpointHold> take(const std::string& directory, const record::LaunchPlan& plan,
                                           const IsOver& is_over);
  CheckpointHold() = default;  // holds nothing
  CheckpointHold(CheckpointHold&& other) noexcept;
  CheckpointHold& operator=(CheckpointHold&& other) noexcept;
  ~CheckpointHold();

 private:
  std::string path_, text_;
};

}  // namespace shardrun::launcher
