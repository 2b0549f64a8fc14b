#include "launcher/verbs/command_line.h"

#include <algorithm>
#include <cstdio>
#include <string_view>
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

// What to say of a word that the verb does not take: the key of the spec, or the option, that was meant.
std::string about_unexpected(const CLI::App& verb, const std::string& name, const std::string& word) {
  const CLI::Option* const spec =
      name == "run" || name == "submit" ? verb.get_option_no_throw("spec") : nullptr;
  const std::string first = spec != nullptr && spec->count() > 0 ? spec->results().front() : "";
  if (!first.empty() && !first.ends_with(".toml"))  // a program, as other launchers take it
    return fmt::format("a program stands behind --: shardrun {} … -- {} …", name, spec::printable(first));
  if (!word.starts_with("--"))
    return fmt::format("{} takes no \"{}\" there: it is one word too many, or an option is missing before it",
                       name, spec::printable(word));
  std::string key = word.substr(2);
  std::replace(key.begin(), key.end(), '-', '_');
  const std::string_view section = spec::section_of_key(key);
  if (!section.empty() && (name == "run" || name == "submit"))
    return fmt::format("--{} is no option of {}, but a key of the spec: write --set {}.{}=VALUE", key, name,
                       section, key);
  std::vector<std::string> options;
  for (const CLI::Option* option : verb.get_options())
    for (const std::string& known : option->get_lnames()) options.push_back(known);
  const std::string near = spec::nearest_name(word.substr(2), options);
  return fmt::format("{} has no option {}{}", name, spec::printable(word),
                     near.empty() ? "" : fmt::format("; did you mean --{}?", near));
}

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

void add_runs(CLI::App& verb, CommandLine& line) {
  verb.add_option("--runs", line.common.runs_directory, "Where run directories are looked for")
      ->capture_default_str();
}

void add_run_name(CLI::App& verb, std::string& name, CommandLine& line, bool required) {
  verb.add_option("run", name, "A run directory, a job's name (its newest run), or a run's id")
      ->required(required);
  add_runs(verb, line);
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
  const size_t behind = words.find("not expected: ");
  if (behind == std::string::npos || verb.starts_with('-')) return words;
  const std::string unexpected = words.substr(behind + 13) + " ";
  std::string first;  // an unknown option explains the words behind it
  for (int i = 2; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.empty() || unexpected.find(" " + word + " ") == std::string::npos) continue;
    if (first.empty() || (word.starts_with("--") && !first.starts_with("--"))) first = word;
  }
  if (first.empty()) return words;
  return about_unexpected(*app.get_subcommand(verb), verb, first.substr(0, first.find('=')));
}

int take_program(int argc, const char* const* argv, CommandLine& line) {
  const std::string_view verb = argc > 1 ? argv[1] : "";
  if (verb != "run" && verb != "submit") return argc;
  for (int i = 2; i < argc; ++i) {
    if (std::string_view(argv[i]) != "--") continue;
    line.behind_dashes.assign(argv + i + 1, argv + argc);
    return i;
  }
  return argc;
}

int usage_error(const char* what) {
  say_error(fmt::format("shardrun: error: {}; see shardrun --help, or --help of the verb\n", what));
  return contract::kExitBadInput;
}

}  // namespace shardrun::launcher
