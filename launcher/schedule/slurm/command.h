// Runs one of Slurm's commands: argv, no shell, bounded in time, output kept.
//
// Thread rule: thread-safe; each call forks and waits.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "runtime/base/io.h"
#include "runtime/base/result.h"

namespace shardrun::launcher {

struct CommandOutput {
  std::string out, err;
};

// The output of a command that ended with 0. Errors: kNotFound (no such program), kTimeout (it was killed),
// kIo with the command's own words when it ended otherwise.
base::Result<CommandOutput> run_command(const std::vector<std::string>& argv, const std::string& input = "",
                                        std::chrono::milliseconds limit = std::chrono::seconds(30));

// A child whose output comes through pipes; for commands that live long.
struct SpawnedCommand {
  pid_t pid = -1;
  base::UniqueFd in, out, err, pidfd;  // our ends; `in` is empty unless asked for
};
// `environment` is set on top of ours; the child starts with no signal blocked and none ignored by us.
base::Result<SpawnedCommand> spawn_command(const std::vector<std::string>& argv,
                                           const std::map<std::string, std::string>& environment,
                                           bool with_input);

}  // namespace shardrun::launcher
