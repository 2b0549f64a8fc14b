// Compares the commands of jobs/ with the options that the programs take (accepted_options.toml). Python's argparse
// takes a prefix of an option for the option, or ends with 2 where several begin with it; here only whole names count.
#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "runtime/base/io.h"
#include "runtime/spec/job_spec.h"
#include "runtime/spec/toml_value.h"

using namespace shardrun;

namespace {

using Words = std::vector<std::string>;

struct Accepted {
  std::set<std::string> flags, values;
  std::set<std::string> words;  // words that stand before another command
  bool starts = false;          // whether it starts another command
  std::string shell;            // the option whose value a shell reads
  std::string source;           // where the program's parser was read
};
using Table = std::map<std::string, Accepted>;

const Table& table() {
  static const Table kKnown = [] {
    Table all;
    const std::string path = SOURCE_DIR "/tests/unit/launcher/accepted_options.toml";
    const auto text = base::read_file(path);
    const auto document = spec::parse_toml(text.value(), path);
    for (const spec::TomlMember& program : document.value().find("program")->members) {
      Accepted& accepted = all[program.key];
      const auto strings = [&](const char* key, std::set<std::string>& out) {
        if (const spec::TomlValue* list = program.value.find(key))
          for (const spec::TomlValue& item : list->items) out.insert(item.text);
      };
      strings("flags", accepted.flags);
      strings("values", accepted.values);
      strings("words", accepted.words);
      if (const auto* starts = program.value.find("starts")) accepted.starts = starts->boolean;
      if (const auto* shell = program.value.find("shell")) accepted.shell = shell->text;
      if (const auto* source = program.value.find("source")) accepted.source = source->text;
    }
    return all;
  }();
  return kKnown;
}

std::string base_name(const std::string& path) {
  return path.substr(path.find_last_of('/') + 1);
}

// What is wrong with a command, and how many options it has, of all the programs that it starts.
struct Finding {
  std::string complaint;  // empty: nothing is wrong
  int options = 0;

  void add(const Finding& other) {
    if (complaint.empty()) complaint = other.complaint;
    options += other.options;
  }
};

Finding check_words(const Words& words);

// Returns the simple commands of a shell's text: words without their quotes; what ; && || | and & separate.
std::vector<Words> simple_commands(const std::string& text) {
  std::vector<Words> commands(1);
  std::string word;
  bool in_word = false;
  char quote = 0;
  const auto end_word = [&] {
    if (in_word) commands.back().push_back(word);
    word.clear();
    in_word = false;
  };
  for (const char c : text) {
    if (quote != 0) {
      if (c == quote)
        quote = 0;
      else
        word += c;
    } else if (c == '\'' || c == '"') {
      quote = c;
      in_word = true;
    } else if (c == ' ' || c == '\t') {
      end_word();
    } else if (c == ';' || c == '&' || c == '|' || c == '\n') {
      end_word();
      if (!commands.back().empty()) commands.emplace_back();
    } else {
      word += c;
      in_word = true;
    }
  }
  end_word();
  return commands;
}

bool is_assignment(const std::string& word) {
  const size_t equals = word.find('=');
  return equals != std::string::npos && equals > 0 &&
         std::all_of(word.begin(), word.begin() + static_cast<std::ptrdiff_t>(equals),
                     [](char c) { return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); });
}

// Checks each command of a shell's text. A variable that the text sets stands for its last value.
Finding check_shell(const std::string& text) {
  static const std::set<std::string> kBuiltins = {"compgen", "test", "[", "set", "export"};
  Finding all;
  std::map<std::string, std::string> variables;
  for (Words words : simple_commands(text)) {
    while (!words.empty() && (words.front() == "exec" || is_assignment(words.front()))) {
      const std::string& word = words.front();
      if (word != "exec") variables["$" + word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
      words.erase(words.begin());
    }
    if (words.empty() || kBuiltins.contains(words.front())) continue;
    for (std::string& word : words)
      if (const auto set = variables.find(word); set != variables.end()) word = set->second;
    std::erase(words, "");
    all.add(check_words(words));
  }
  return all;
}

Finding check_words(const Words& words) {
  const std::string program = base_name(words.front());
  const auto known = table().find(program);
  if (known == table().end()) return {program + " is not in accepted_options.toml", 0};
  const Accepted& accepted = known->second;
  Finding finding;
  for (size_t i = 1; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word.size() < 2 || word.front() != '-') {
      const bool variable = program == "env" && is_assignment(word);
      if (!accepted.starts || variable || accepted.words.contains(word)) continue;
      finding.add(check_words(Words(words.begin() + static_cast<std::ptrdiff_t>(i), words.end())));
      return finding;
    }
    ++finding.options;
    const std::string name = word.substr(0, word.find('='));
    const bool has_value = name.size() < word.size();
    if (accepted.flags.contains(name) && !has_value) continue;
    if (!accepted.values.contains(name))
      return {fmt::format("{} has no option {}", program, word), finding.options};
    if (has_value) continue;
    if (i + 1 == words.size() || words[i + 1].starts_with("--"))
      return {fmt::format("{} {} lacks its value", program, name), finding.options};
    ++i;
    if (name == accepted.shell) finding.add(check_shell(words[i]));
  }
  return finding;
}

struct JobCommand {
  std::string where;  // "hello.toml, program"
  Words words;
};

std::vector<JobCommand> commands_of_jobs() {
  std::vector<JobCommand> commands;
  for (const auto& file : std::filesystem::directory_iterator(SOURCE_DIR "/jobs")) {
    if (file.path().extension() != ".toml") continue;
    const auto spec = spec::load_job_spec(file.path().string());
    REQUIRE_MESSAGE(spec.has_value(), spec.error().to_string());
    const std::string name = file.path().filename().string();
    if (!spec->program.command.empty()) commands.push_back({name + ", program", spec->program.command});
    if (!spec->precompile.command.empty())
      commands.push_back({name + ", precompile", spec->precompile.command});
  }
  return commands;
}

// Returns, for every place of `words` where a long option stands, also within a shell's text, the words with the
// last letter of that option gone.
std::vector<Words> with_an_option_shortened(const Words& words) {
  std::vector<Words> all;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    for (size_t at = word.find("--"); at != std::string::npos; at = word.find("--", at + 2)) {
      const size_t end = std::min(word.find_first_of(" =\"';", at), word.size());
      Words shortened = words;
      shortened[i].erase(end - 1, 1);
      all.push_back(std::move(shortened));
    }
  }
  return all;
}

}  // namespace

TEST_CASE("job commands: every option of jobs/ is one that its program takes") {
  int options = 0;
  std::set<std::string> checked;
  for (const JobCommand& command : commands_of_jobs()) {
    CAPTURE(command.where);
    const Finding finding = check_words(command.words);
    CHECK(finding.complaint == "");
    options += finding.options;
    checked.insert(command.where);
  }
  CHECK(checked.contains("bert-large-trn1.toml, program"));
  CHECK(checked.contains("bert-large-trn1.toml, precompile"));
  CHECK(checked.contains("bert-large-trn1-phase2.toml, precompile"));
  CHECK(options >= 60);
}

TEST_CASE("job commands: an option of jobs/ that lost a letter is refused, wherever it stands") {
  int planted = 0;
  for (const JobCommand& command : commands_of_jobs()) {
    for (const Words& wrong : with_an_option_shortened(command.words)) {
      CAPTURE(command.where);
      CAPTURE(wrong.back());
      CHECK(check_words(wrong).complaint.find(" has no option --") != std::string::npos);
      ++planted;
    }
  }
  CHECK(planted >= 50);
}

TEST_CASE("job commands: the table of a script of jobs/ is what its parser says") {
  int scripts = 0;
  for (const auto& known : table()) {
    CAPTURE(known.first);
    const Accepted& accepted = known.second;
    CHECK_FALSE(accepted.source.empty());
    if (accepted.source.starts_with("https://")) continue;
    ++scripts;
    const std::string text = base::read_file(SOURCE_DIR "/" + accepted.source).value();
    std::set<std::string> flags, values;
    const std::string call = "add_argument(\"";
    for (size_t at = text.find(call); at != std::string::npos; at = text.find(call, at + 1)) {
      const size_t begin = at + call.size(), end = text.find('"', begin);
      const std::string line = text.substr(at, text.find('\n', at) - at);
      (line.find("store_true") == std::string::npos ? values : flags).insert(text.substr(begin, end - begin));
    }
    CHECK(accepted.flags == flags);
    CHECK(accepted.values == values);
  }
  CHECK(scripts == 3);
}

TEST_CASE("job commands: what a program does not take is refused by name") {
  const auto complaint = [](const Words& words) { return check_words(words).complaint; };
  const std::string script = "dp_bert_large_hf_pretrain_hdf5.py";

  CHECK(complaint({"env", "python3", script, "--phase1", "--lr", "4e-4"}) ==
        script + " has no option --phase1");
  CHECK(complaint({"python3", script, "--resume_ckpt=yes"}) == script + " has no option --resume_ckpt=yes");
  CHECK(complaint({"python3", script, "--lr", "--phase2"}) == script + " --lr lacks its value");
  CHECK(complaint({"torchrun", "--nproc", "2", script}) == "torchrun has no option --nproc");
  CHECK(complaint({"torchrun", "--batch_size", "2", script}) == "torchrun has no option --batch_size");
  CHECK(complaint({"torchrun", "--nproc_per_node=2", "/w/" + script, "--nnodes=1"}) ==
        script + " has no option --nnodes=1");
  CHECK(complaint({"env", "A=--x", "bash", "-c",
                   "a=--wrong; test -e x && exec torchrun \"--nnodes=$N\" " + script + " $a"}) ==
        script + " has no option --wrong");
  CHECK(complaint({"accelerate", "launch", "--num_process", "2", "finetune.py"}) ==
        "accelerate has no option --num_process");
  CHECK(complaint({"accelerate", "launch", "--cpu", "jobs/scripts/finetune.py", "--max_seq_length", "8"}) ==
        "finetune.py has no option --max_seq_length");
  CHECK(complaint({"env", "deepspeed", script}) == "deepspeed is not in accepted_options.toml");
}
