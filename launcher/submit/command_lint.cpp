#include "launcher/submit/command_lint.h"

#include <algorithm>
#include <cctype>
#include <string_view>

#include <fmt/format.h>

#include "runtime/spec/toml_value.h"

namespace shardrun::launcher {
namespace {

using Words = std::vector<std::string>;

std::string_view base_name(std::string_view word) {
  return word.substr(word.find_last_of('/') + 1);  // npos + 1 is 0
}

bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

// Returns the index of the program: that behind "env" and its variables.
size_t program_index(const Words& command) {
  size_t at = 0;
  if (base_name(command[0]) != "env") return at;
  for (at = 1; at < command.size(); ++at) {
    if (command[at].find('=') == std::string::npos && !command[at].starts_with('-')) return at;
  }
  return 0;
}

// Whether a word asks a launcher of PyTorch for several machines, which it then starts once on each.
bool names_machines(const std::string& word) {
  return is_one_of(std::string_view(word).substr(0, word.find('=')),
                   {"--nnodes", "--num_machines", "--num_nodes", "--hostfile"});
}

struct Nested {
  std::string name;
  bool for_torch = false;
};

// Returns the launcher that the words start; an empty name where they start none.
Nested nested_launcher(const Words& words, size_t begin) {
  const std::string_view program = base_name(words[begin]);
  if (is_one_of(program, {"torchrun", "deepspeed"})) return {std::string(program), true};
  if (is_one_of(program, {"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prun", "srun", "horovodrun"}))
    return {std::string(program)};
  const std::string second = begin + 1 < words.size() ? words[begin + 1] : "";
  if (program == "accelerate" && second == "launch") return {"accelerate launch", true};
  if (!program.starts_with("python")) return {};
  for (size_t i = begin + 1; i + 1 < words.size() && words[i].starts_with('-'); ++i) {
    if (words[i] == "-m" && is_one_of(words[i + 1], {"torch.distributed.run", "torch.distributed.launch",
                                                     "accelerate.commands.launch", "deepspeed"}))
      return {"python -m " + words[i + 1], true};
  }
  return {};
}

std::string warn_of_launcher(const spec::JobSpec& spec, size_t begin) {
  const Words& command = spec.program.command;
  const Nested nested = nested_launcher(command, begin);
  const int ranks = spec.resources.nodes * spec.resources.ranks_per_node;
  if (nested.name.empty() || ranks == 1) return "";
  const bool once_on_each_node = nested.for_torch && spec.resources.ranks_per_node == 1 &&
                                 std::any_of(command.begin(), command.end(), names_machines);
  if (once_on_each_node) return "";
  return fmt::format(
      "{}: {} starts processes of its own, and each of the {} ranks would start it: the job would run {} "
      "times; write the program that it starts, {}",
      spec.origin(fmt::format("program.command[{}]", begin)), spec::printable(nested.name), ranks, ranks,
      nested.for_torch ? "for every rank has torchrun's variables" : "for MPI finds the ranks through PMIx");
}

// Whether a program reads its arguments as a program text of its own.
bool reads_program_texts(std::string_view program) {
  return is_one_of(program, {"sh", "bash", "dash", "zsh", "ksh", "fish", "awk", "gawk", "mawk", "sed", "jq",
                             "perl", "grep", "egrep", "expr", "eval", "xargs", "find"});
}

bool names_variable(const std::string& word) {
  for (size_t at = word.find('$'); at != std::string::npos; at = word.find('$', at + 1)) {
    const size_t next = at + 1 < word.size() && word[at + 1] == '{' ? at + 2 : at + 1;
    if (next >= word.size()) return false;
    if (word[next] == '(' || word[next] == '_' || std::isalpha(static_cast<unsigned char>(word[next])) != 0)
      return true;
  }
  return false;
}

std::string warn_of_shell(const spec::JobSpec& spec, size_t begin) {
  const Words& command = spec.program.command;
  if (reads_program_texts(base_name(command[begin]))) return "";
  for (size_t i = begin + 1; i < command.size(); ++i) {
    const std::string& word = command[i];
    if (is_one_of(command[i - 1], {"-c", "-e"})) continue;  // a program text
    const bool joins = is_one_of(word, {"|", "||", "&", "&&", ";", ">", ">>", "<", "2>", "2>&1", "&>"});
    if (!joins && !word.starts_with("~/") && !names_variable(word)) continue;
    return fmt::format("{}: \"{}\" reaches {} as it stands, for no shell reads a command; write {}",
                       spec.origin(fmt::format("program.command[{}]", i)), spec::printable(word),
                       spec::printable(base_name(command[begin])),
                       joins ? "[\"bash\", \"-c\", \"…\"] with the whole line as one word"
                             : "the value itself, or [\"bash\", \"-c\", \"…\"]");
  }
  return "";
}

}  // namespace

std::vector<std::string> lint_command(const spec::JobSpec& spec) {
  if (spec.program.command.empty()) return {};
  const size_t begin = program_index(spec.program.command);
  std::vector<std::string> warnings;
  for (std::string& warning : std::vector{warn_of_launcher(spec, begin), warn_of_shell(spec, begin)}) {
    if (!warning.empty()) warnings.push_back(std::move(warning));
  }
  return warnings;
}

}  // namespace shardrun::launcher
