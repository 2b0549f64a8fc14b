#include "launcher/verbs/completion.h"

#include <algorithm>
#include <cstdio>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/verbs/command_line.h"

namespace shardrun::launcher {
namespace {

std::string shell_quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

// Also what zsh runs, through its bashcompinit. Files are left to the shell, which alone knows how to quote their names.
std::string bash(const std::vector<CompletionVerb>& verbs) {
  std::string names, cases;
  for (const CompletionVerb& verb : verbs) {
    names += (names.empty() ? "" : " ") + verb.name;
    cases += fmt::format("    {}) words={} below={} ;;\n", verb.name,
                         shell_quoted(fmt::format("{}", fmt::join(verb.options, " "))),
                         shell_quoted(fmt::format("{}", fmt::join(verb.verbs, " "))));
  }
  return fmt::format(R"(_shardrun() {{
  local words below=
  COMPREPLY=()
  case ${{COMP_WORDS[1]}} in
{}    *) words={} ;;
  esac
  [ "$COMP_CWORD" -eq 1 ] && words={}
  [ "$COMP_CWORD" -eq 2 ] && [ -n "$below" ] && words=$below
  case ${{COMP_WORDS[COMP_CWORD]}} in
    -*) ;;
    *) [ "$COMP_CWORD" -gt 1 ] && [ "$words" != "$below" ] && return ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _shardrun shardrun
)",
                     cases, shell_quoted(names), shell_quoted(names + " --help --version"));
}

std::string fish(const std::vector<CompletionVerb>& verbs) {
  std::string script;
  for (const CompletionVerb& verb : verbs) {
    script += fmt::format("complete -c shardrun -n __fish_use_subcommand -a {} -d {}\n", verb.name,
                          shell_quoted(verb.description));
    for (const std::string& below : verb.verbs)
      script +=
          fmt::format("complete -c shardrun -n '__fish_seen_subcommand_from {}' -a {}\n", verb.name, below);
    for (const std::string& option : verb.options) {
      const bool is_long = option.rfind("--", 0) == 0;
      script += fmt::format("complete -c shardrun -n '__fish_seen_subcommand_from {}' -{} {}\n", verb.name,
                            is_long ? "l" : "s", option.substr(is_long ? 2 : 1));
    }
  }
  return script;
}

}  // namespace

std::string completion_script(const std::string& shell, const std::vector<CompletionVerb>& verbs) {
  if (shell == "fish") return fish(verbs);
  return shell == "zsh" ? "autoload -U +X bashcompinit && bashcompinit\n" + bash(verbs) : bash(verbs);
}

namespace {

struct CompletionOptions {
  std::string shell;
};

void add_completion_options(const CLI::App& verb, std::vector<std::string>& options) {
  const auto add = [&options](const std::string& name) {
    if (std::find(options.begin(), options.end(), name) == options.end()) options.push_back(name);
  };
  for (const CLI::Option* option : verb.get_options()) {
    if (option->get_group().empty()) continue;
    for (const std::string& name : option->get_lnames()) add("--" + name);
    for (const std::string& name : option->get_snames()) add("-" + name);
  }
}

// The verbs and their options as the completion scripts need them, from the very tree that parses.
std::vector<CompletionVerb> completion_verbs(const CLI::App& app) {
  std::vector<CompletionVerb> verbs;
  for (const CLI::App* verb : app.get_subcommands(nullptr)) {
    CompletionVerb entry{verb->get_name(), verb->get_description(), {}, {}};
    add_completion_options(*verb, entry.options);
    for (const CLI::App* below : verb->get_subcommands(nullptr)) {
      entry.verbs.push_back(below->get_name());
      add_completion_options(*below, entry.options);
    }
    verbs.push_back(std::move(entry));
  }
  return verbs;
}

}  // namespace

void add_completion(CLI::App& app, CommandLine& line) {
  auto& options = line.keep<CompletionOptions>();
  CLI::App* verb = app.add_subcommand("completion", "Print a completion script for a shell");
  verb->add_option("shell", options.shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  verb->footer("Example:\n  source <(shardrun completion bash)");
  verb->callback(
      [&] { std::fputs(completion_script(options.shell, completion_verbs(app)).c_str(), stdout); });
}

}  // namespace shardrun::launcher
