// The verb that shows logs, for the verbs that end in it.
//
// Thread rule: the main thread only.
#pragma once

#include <string>

#include "launcher/verbs/command_line.h"
#include "runtime/record/run_dir.h"

namespace shardrun::launcher {

// Which lines are shown; -1 and "" are all.
struct LogFilter {
  int rank = -1;
  std::string node;
};

// Shows the run's logs until it ends, then says how; says on stderr what it waits for before. Returns the run's exit code.
base::Result<int> follow_run(const record::RunDir& run, const LogFilter& filter);

}  // namespace shardrun::launcher
