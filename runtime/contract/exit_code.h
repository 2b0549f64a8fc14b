// The exit codes of shardrun and of shardrun-rank, and the names of signals. docs/job-spec.md holds the table for users.
#pragma once

#include <string>

#include "runtime/base/result.h"
#include "runtime/record/run_record.h"

namespace shardrun::contract {

enum ExitCode : int {
  kExitDone = 0,
  kExitProgramFailed = 1,
  kExitBadInput = 2,
  kExitRefused = 3,         // refused before launch
  kExitInfrastructure = 4,  // a node, the network, the scheduler or a lost peer
  kExitPreempted = 75,      // stopped on request with a checkpoint; may be started again
  kExitDoNotRequeue = 93,   // the program says that another try cannot help
};

// Returns whether the rank ended as ranks do that were asked to stop: with a checkpoint, or by the signal itself.
bool ended_as_asked(const record::RankExit& exit);

// Returns the code with which a command for people ends on such an error. A rank's own codes are the trainer's.
int exit_code_of(base::Code code);

// Returns "SIGKILL" for 9, and "signal 77" where there is no name.
std::string signal_name(int signal);

}  // namespace shardrun::contract
