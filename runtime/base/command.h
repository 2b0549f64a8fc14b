// Runs another program by its argv, without a shell, with a time limit, and keeps its output.
//
// Thread rule: thread-safe; each call forks and waits.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "runtime/base/io.h"
#include "runtime/base/result.h"

namespace shardrun::base {

// Returns words as exec takes them, with a null pointer behind the last. They must outlive it.
std::vector<char*> pointers_to(const std::vector<std::string>& words);

struct CommandOutput {
  std::string out, err;
  int status = 0;  // as waitpid() reports it
};

// Whose process group a command is in.
enum class Group {
  kOwn,   // a Ctrl-C on the terminal reaches us, and we decide what the command gets
  kOurs,  // it may ask for a password on the terminal, which stops whoever reads it from another group than the one in front
};

// Returns the output of a command, however it ended. `goes_on` is asked every second or two until then whether to wait any longer.
// Errors: kNotFound (there is no such program), kTimeout and kCancelled (its time was over, or `goes_on` said no: it was killed,
// with its process group if that is its own), kIo.
Result<CommandOutput> finish_command(const std::vector<std::string>& argv, const std::string& input,
                                     std::chrono::milliseconds limit,
                                     const std::function<bool()>& goes_on = {},
                                     const std::vector<std::string>& without = {}, Group group = Group::kOwn);
// Returns the output of a command that ended with 0; kIo with the command's own words when it ended otherwise. It does not see
// those of our variables that `without` names.
Result<CommandOutput> run_command(const std::vector<std::string>& argv, const std::string& input = "",
                                  std::chrono::milliseconds limit = std::chrono::seconds(30),
                                  const std::vector<std::string>& without = {},
                                  const std::function<bool()>& goes_on = {});

// A child whose output comes through pipes; for commands that live long.
struct SpawnedCommand {
  pid_t pid = -1;
  UniqueFd in, out, err, pidfd;  // our ends; `in` is empty unless asked for
};
// Sets `environment` on top of ours, less `without`; the child starts with no signal blocked and none ignored by us.
Result<SpawnedCommand> spawn_command(const std::vector<std::string>& argv,
                                     const std::map<std::string, std::string>& environment, bool with_input,
                                     const std::vector<std::string>& without = {}, Group group = Group::kOwn);

}  // namespace shardrun::base
