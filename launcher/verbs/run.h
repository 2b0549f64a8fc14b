// The verb that runs a job here, for the verbs that end in it.
//
// Thread rule: the main thread only.
#pragma once

#include <string>

#include "launcher/verbs/command_line.h"

namespace shardrun::launcher {

struct RunOptions {
  JobOptions job;
  std::string run_directory;  // continue a prepared directory in the place of a new one
  std::string id;             // what the run is called from now on; "" leaves it that of its directory's plan
  std::string attach;         // name of a run whose conductor has died: wait for its ranks
  bool dry_run = false;
  bool quiet = false;
  bool trace = false;  // write when what of the launch was done
};
// Returns the run's exit code.
base::Result<int> run(const RunOptions& options, const CommonOptions& common);

}  // namespace shardrun::launcher
