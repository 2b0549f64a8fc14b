// The command line as its verbs make it: each source of this folder that has a verb defines add_VERB(), which adds the verb
// with its help and options, and launcher/main parses.
//
// A verb's options are filled before its callback runs, which does the verb's work and sets the exit code. Results go to
// stdout, errors to stderr as one line (contract/exit_code.h). Thread rule: the main thread only.
#pragma once

#include <any>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "launcher/runs/common.h"
#include "launcher/submit/remote.h"
#include "runtime/contract/exit_code.h"

namespace shardrun::launcher {

struct CommandLine {
  CommonOptions common;
  RemoteHost remote;                       // --host; without a host, the verb works here
  std::string name_space;                  // --kubernetes; without one, the run is no job of Kubernetes
  std::vector<std::string> words;          // as they were typed, behind the program's name
  std::vector<std::string> behind_dashes;  // of those, a program behind "--", which no verb's options see
  int exit_code = contract::kExitDone;

  // Ends the verb; an error is said.
  void end(const base::Result<int>& ended) { exit_code = ended ? *ended : fail(ended.error(), common); }

  // Returns new options of a verb, which live as long as the command line.
  template <typename Options>
  Options& keep() {
    return *std::any_cast<Options>(&kept.emplace_back(std::in_place_type<Options>));
  }
  std::deque<std::any> kept;
};

// A job that `run` and `submit` start (launcher/verbs/job_line.h): a file, or a program; flags stand for keys of the spec.
struct JobOptions {
  std::string path;
  std::vector<std::string> overrides;  // of --set
  std::vector<std::string> command;    // behind --
  std::optional<int64_t> nodes, ranks_per_node, cpus_per_rank, gpus_per_node;
  std::string time_limit, partition, account, name;
  std::string save;  // the file that gets the job's text
};

// The name of a run, as find_run() takes it.
struct RunName {
  std::string run;
};

// Adds --verbose, and --json where a verb has it.
void add_common(CLI::App& verb, CommandLine& line, bool json);
// Adds --set.
void add_overrides(CLI::App& verb, std::vector<std::string>& overrides);
// Adds --runs.
void add_runs(CLI::App& verb, CommandLine& line);
// Adds the run that a verb is about, and --runs.
void add_run_name(CLI::App& verb, std::string& name, CommandLine& line, bool required);

// As CLI::Range, whose refusal has other words from one version of CLI11 to the next.
template <typename Number>
CLI::Validator in_range(Number low, Number high) {
  const CLI::Range range(low, high);
  CLI::Validator worded = range;  // with its words for --help
  worded.operation([range, low, high](std::string& text) {
    return range(text).empty() ? std::string()
                               : fmt::format("Value {} not in range {} to {}", text, low, high);
  });
  return worded;
}

// Returns what to say of a command line that could not be parsed: the nearest verb to one that does not exist, the key of the
// spec behind an option that looks like one ("--nodes"), or else the parser's own `words`.
std::string better_words(const CLI::App& app, int argc, const char* const* argv, const std::string& words);

// Says on one line what is wrong with the command line; returns the exit code for it.
int usage_error(const char* what);

// Takes a program behind "--" off the words of `run` and `submit`; returns how many words are left.
int take_program(int argc, const char* const* argv, CommandLine& line);

// Adds every verb. The definition is made from the list in this folder's CMakeLists.txt: it calls add_VERB(app, line) of each.
void add_verbs(CLI::App& app, CommandLine& line);

}  // namespace shardrun::launcher
