// A head node reached through the system's ssh: the words of a command there, and files sent to it.
//
// ssh finds keys, agents, jump hosts and names as its own configuration says; shardrun knows no password and has no library for
// it. One connection serves the commands of ten minutes.
// Thread rule: free functions; those that run ssh wait for it.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "runtime/base/command.h"
#include "runtime/base/result.h"

namespace shardrun::launcher {

struct RemoteHost {
  std::string host;  // as ssh takes it: "user@login", or a name of ssh's configuration
  std::string directory =
      "shardrun";  // where jobs are submitted and runs/ lies there; relative to the home folder
  std::string program = "shardrun";  // found on the PATH there or on that of a login, or a path
};

// kInvalid when ssh would take the host for an option, or it has blanks or control characters.
base::Result<void> check_host(const RemoteHost& remote);

// Returns the argv of ssh for a command there. The remote login shell, which may be csh or fish, gets each word in quotes, so that a
// word arrives as it is, whatever it holds; only csh takes no newline. `terminal` asks for one there.
std::vector<std::string> ssh_command(const RemoteHost& remote, const std::vector<std::string>& words,
                                     bool terminal = false);

constexpr auto kAnswerLimit = std::chrono::minutes(10);
constexpr auto kFileLimit = std::chrono::hours(24);  // the person who waits for a slow line ends it

// Runs an argv that ends in one of ssh_command(), which may ask for a password or for a new host's key on the terminal, and returns
// its output, however it ended.
base::Result<base::CommandOutput> run_ssh(const std::vector<std::string>& argv, const std::string& input = "",
                                          std::chrono::milliseconds limit = kAnswerLimit);

// Returns the words that run `words` in the remote directory.
std::vector<std::string> in_directory(const RemoteHost& remote, const std::vector<std::string>& words);

// Puts a file into inbox/`name` of the remote directory, in one piece or not at all. kIo with ssh's words.
base::Result<void> send_file(const RemoteHost& remote, const std::string& path, const std::string& name);
// Says whether inbox/`name` is there. kIo when nobody can be asked.
base::Result<bool> has_file(const RemoteHost& remote, const std::string& name);

// The same as send_file for a file that holds `text`, and then runs `words` in the remote directory, in one way there and back.
// Nothing is run when the text did not arrive whole. Returns the output of the words, however they ended.
base::Result<base::CommandOutput> send_and_run(const RemoteHost& remote, const std::string& text,
                                               const std::string& name,
                                               const std::vector<std::string>& words);

}  // namespace shardrun::launcher
