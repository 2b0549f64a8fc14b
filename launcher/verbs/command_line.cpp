#include "launcher/verbs/command_line.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include <fmt/format.h>

#include "runtime/spec/key_places.h"
#include "runtime/spec/spec_reader.h"
#include "runtime/spec/toml_value.h"

namespace shardrun::launcher {
namespace {

// What people type who come from other launchers, shells and Slurm.
constexpr std::pair<const char*, const char*> kHabits[] = {
    {"help", "--help"},      {"ps", "status"},      {"ls", "status"},      {"list", "status"},
    {"squeue", "status"},    {"kill", "cancel"},    {"stop", "cancel"},    {"rm", "cancel"},
    {"scancel", "cancel"},   {"start", "run"},      {"launch", "run"},     {"exec", "run"},
    {"train", "run"},        {"sbatch", "submit"},  {"batch", "submit"},   {"log", "logs"},
    {"tail", "logs -f"},     {"attach", "logs -f"}, {"follow", "logs -f"}, {"why", "explain"},
    {"describe", "explain"}, {"check", "validate"}, {"lint", "validate"},  {"version", "--version"}};

}  // namespace

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

std::string better_words(const CLI::App& app, int argc, const char* const* argv, const std::string& words) {
  if (argc < 2) return words;
  const std::string verb = argv[1];
  const auto verbs = app.get_subcommands([](const CLI::App*) { return true; });
  std::vector<std::string> names;
  bool known = verb.starts_with('-');
  for (const CLI::App* candidate : verbs) {
    names.push_back(candidate->get_name());
    known = known || names.back() == verb;
  }
  if (!known) {
    std::string meant = spec::nearest_name(verb, names);
    for (const auto& [habit, name] : kHabits)
      if (verb == habit) meant = name;
    return fmt::format("there is no verb \"{}\"{}", spec::printable(verb),
                       meant.empty() ? "" : fmt::format("; did you mean `shardrun {}`?", meant));
  }
  if (verb != "run" && verb != "submit") return words;
  for (int i = 2; i < argc; ++i) {
    std::string option = argv[i];
    if (!option.starts_with("--")) continue;
    option = option.substr(2, option.find('=') - 2);
    std::replace(option.begin(), option.end(), '-', '_');
    const std::string_view section = spec::section_of_key(option);
    const bool refused = words.find(std::string(argv[i]).substr(0, option.size() + 2)) != std::string::npos;
    if (refused && !section.empty())
      return fmt::format("--{} is no option of {}, but a key of the spec: write --set {}.{}=VALUE", option,
                         verb, section, option);
  }
  return words;
}

int usage_error(const char* what) {
  std::fprintf(stderr, "shardrun: error: %s; see shardrun --help, or --help of the verb\n", what);
  return contract::kExitBadInput;
}

}  // namespace shardrun::launcher
