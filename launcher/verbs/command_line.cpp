#include "launcher/verbs/command_line.h"

#include <cstdio>

namespace shardrun::launcher {

void add_common(CLI::App& verb, CommandLine& line, bool json) {
  if (json) verb.add_flag("--json", line.common.json, "Machine-readable output");
  verb.add_flag("--verbose", line.common.verbose, "On an error, its whole chain of causes");
}

void add_overrides(CLI::App& verb, std::vector<std::string>& overrides) {
  verb.add_option("--set", overrides, "Override a key of the spec: section.key=value (repeatable)")
      ->allow_extra_args(false)
      ->type_name("KEY=VALUE");
}

void add_run_name(CLI::App& verb, std::string& name, CommandLine& line, bool required) {
  verb.add_option("run", name, "A run directory, a job's name (its newest run), or a run's id")
      ->required(required);
  verb.add_option("--runs", line.common.runs_directory, "Where run directories are looked for")
      ->capture_default_str();
}

int usage_error(const char* what) {
  std::fprintf(stderr, "shardrun: error: %s; see shardrun --help, or --help of the verb\n", what);
  return contract::kExitBadInput;
}

}  // namespace shardrun::launcher
