// Completion scripts for shells, made from the verbs that the command line has.
//
// Thread rule: pure function.
#pragma once

#include <string>
#include <vector>

namespace shardrun::launcher {

struct CompletionVerb {
  std::string name, description;
  std::vector<std::string> options;  // with those of the verbs below it
  std::vector<std::string> verbs;    // below it, e.g. render of cluster
};

// `shell` is bash, zsh or fish.
std::string completion_script(const std::string& shell, const std::vector<CompletionVerb>& verbs);

}  // namespace shardrun::launcher
