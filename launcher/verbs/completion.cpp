#include "launcher/verbs/completion.h"

#include <fmt/format.h>

namespace shardrun::launcher {
namespace {

std::string shell_quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

// Also what zsh runs, through its bashcompinit.
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
    *) [ "$COMP_CWORD" -gt 1 ] && [ "$words" != "$below" ] && {{ COMPREPLY=($(compgen -f -- "${{COMP_WORDS[COMP_CWORD]}}")); return; }} ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o filenames -F _shardrun shardrun
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

}  // namespace shardrun::launcher
