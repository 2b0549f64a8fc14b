#include "launcher/verbs/job_line.h"

#include <sys/stat.h>

#include <cctype>

#include <fmt/format.h>

#include "runtime/base/io.h"
#include "runtime/spec/toml_text.h"
#include "runtime/spec/toml_value.h"

namespace shardrun::launcher {
namespace {

using base::Code;
using base::Error;
using base::Result;

// What a job of the command line is called in messages.
constexpr const char* kCommandLine = "command line";

// Returns the assignments that the flags stand for, as --set takes them.
std::vector<std::string> assignments_of(const JobOptions& job) {
  std::vector<std::string> assignments;
  const auto number = [&](const char* key, const std::optional<int64_t>& value) {
    if (value) assignments.push_back(fmt::format("{}={}", key, *value));
  };
  const auto word = [&](const char* key, const std::string& value) {
    if (!value.empty()) assignments.push_back(fmt::format("{}={}", key, spec::toml_string(value)));
  };
  word("name", job.name);
  number("resources.nodes", job.nodes);
  number("resources.ranks_per_node", job.ranks_per_node);
  number("resources.cpus_per_rank", job.cpus_per_rank);
  number("resources.gpus_per_node", job.gpus_per_node);
  word("resources.time_limit", job.time_limit);
  word("resources.partition", job.partition);
  word("resources.account", job.account);
  return assignments;
}

std::string stem_of(const std::string& word) {
  const std::string file = word.substr(word.find_last_of('/') + 1);
  return file.substr(0, file.find_last_of('.'));
}

// A job is called as its script, or else as its program.
std::string name_of(const std::vector<std::string>& command) {
  std::string name = stem_of(command.front());
  for (const std::string& word : command) {
    if (!word.ends_with(".py") && !word.ends_with(".sh")) continue;
    name = stem_of(word);
    break;
  }
  std::string clean;
  for (const char c : name.substr(0, 64)) {
    const bool kept = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.';
    clean += kept ? c : '-';
  }
  return clean.empty() || std::isalnum(static_cast<unsigned char>(clean[0])) == 0 ? "job" : clean;
}

// The text exists only here: messages name the word that the person typed.
void name_places(const JobOptions& job, spec::JobSpec& spec) {
  spec.origins["program.command"] = "behind --";
  for (size_t i = 0; i < job.command.size(); ++i)
    spec.origins[fmt::format("program.command[{}]", i)] =
        fmt::format("behind --, word {} \"{}\"", i + 1, spec::printable(job.command[i], 30));
}

Result<void> save(const std::string& path, const std::string& text) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) == 0)
    return Error(Code::kRefused,
                 fmt::format("--save {0}: is there already; run it with `shardrun run {0}`, or "
                             "choose another name",
                             spec::printable_path(path)));
  return base::write_file_atomically(path, text);
}

// Refuses a number alone, which is seconds in a spec and minutes to sbatch.
std::string not_a_number_alone(const std::string& limit) {
  const std::optional<int64_t> seconds = spec::parse_duration_seconds(limit);
  if (!seconds || limit.find_first_not_of("0123456789") != std::string::npos) return "";
  return fmt::format("{0} could be minutes, as for sbatch, or seconds: write {0}:00 or {1}:{2:02}", limit,
                     *seconds / 60, *seconds % 60);
}

}  // namespace

void add_job(CLI::App& verb, JobOptions& job) {
  constexpr int64_t kMost = 65536;
  verb.add_option("spec", job.path, "job.toml; or none, and a program behind --");
  verb.add_option("-N,--nodes", job.nodes, "Nodes")->check(in_range(int64_t{1}, kMost));
  verb.add_option("-n,--ranks-per-node", job.ranks_per_node, "Processes on each node")
      ->check(in_range(int64_t{1}, int64_t{1024}));
  verb.add_option("-c,--cpus-per-rank", job.cpus_per_rank, "CPUs of each process")
      ->check(in_range(int64_t{1}, int64_t{4096}));
  verb.add_option("--gpus-per-node", job.gpus_per_node, "GPUs of each node")
      ->check(in_range(int64_t{0}, int64_t{1024}));
  verb.add_option("-t,--time", job.time_limit, "Time limit, e.g. 01:00:00 or, of two minutes, 02:00")
      ->check(not_a_number_alone);
  verb.add_option("-p,--partition", job.partition, "Slurm's partition");
  verb.add_option("-A,--account", job.account, "Slurm's account");
  verb.add_option("--name", job.name, "The job's name; without a spec, else the script's");
  verb.add_option("--save", job.save, "Write the job of a program behind -- as this job.toml, too");
  add_overrides(verb, job.overrides);
}

std::vector<std::string> overrides_of(const JobOptions& job) {
  if (job.path.empty()) return job.overrides;
  std::vector<std::string> overrides = assignments_of(job);
  overrides.insert(overrides.end(), job.overrides.begin(), job.overrides.end());
  return overrides;
}

std::string job_text(const JobOptions& job) {
  std::string resources;
  for (const std::string& assignment : assignments_of(job)) {
    constexpr std::string_view kSection = "resources.";
    if (!assignment.starts_with(kSection)) continue;
    const size_t equals = assignment.find('=');
    resources += fmt::format("{} = {}\n", assignment.substr(kSection.size(), equals - kSection.size()),
                             assignment.substr(equals + 1));
  }
  return fmt::format("name = {}\n{}\n[program]\ncommand = {}\n",
                     spec::toml_string(job.name.empty() ? name_of(job.command) : job.name),
                     resources.empty() ? "" : "\n[resources]\n" + resources, spec::toml_array(job.command));
}

Result<LoadedSpec> load_job(const JobOptions& job) {
  if (!job.path.empty() && !job.command.empty())
    return Error(Code::kInvalid,
                 fmt::format("there are a job spec ({}) and a program behind --; keep one of them",
                             spec::printable_path(job.path)));
  if (job.path.empty() && job.command.empty())
    return Error(
        Code::kInvalid,
        "there is no job; name a job.toml, e.g. jobs/tiny-llama.toml, or write a program behind --, e.g. "
        "-N 1 -n 2 -- python3 train.py");
  if (job.command.empty()) {
    if (!job.save.empty())
      return Error(Code::kInvalid, "--save writes the job of a program behind --, and this job has a file");
    if (job.path.ends_with(".py") || job.path.ends_with(".sh"))
      return Error(
          Code::kInvalid,
          fmt::format("{0} is a program, not a job.toml; write it behind --: -- {1} {0}",
                      spec::printable_path(job.path), job.path.ends_with(".py") ? "python3" : "bash"));
    return load_spec_to_start(job.path, overrides_of(job));
  }
  const std::string text = job_text(job);
  ASSIGN_OR_RETURN(auto loaded, load_spec_text(text, kCommandLine, job.overrides));
  if (!job.save.empty()) RETURN_IF_ERROR(save(job.save, text));
  name_places(job, loaded.spec);
  return loaded;
}

std::vector<std::string> words_of(const JobOptions& job) {
  std::vector<std::string> words;
  if (!job.path.empty()) words.push_back(absolute_path(job.path));
  const auto number = [&](const char* flag, const std::optional<int64_t>& value) {
    if (value) words.insert(words.end(), {flag, std::to_string(*value)});
  };
  const auto word = [&](const char* flag, const std::string& value) {
    if (!value.empty()) words.push_back(fmt::format("{}={}", flag, value));
  };
  number("--nodes", job.nodes);
  number("--ranks-per-node", job.ranks_per_node);
  number("--cpus-per-rank", job.cpus_per_rank);
  number("--gpus-per-node", job.gpus_per_node);
  word("--time", job.time_limit);
  word("--partition", job.partition);
  word("--account", job.account);
  word("--name", job.name);
  for (const std::string& assignment : job.overrides) words.insert(words.end(), {"--set", assignment});
  if (!job.command.empty()) {
    words.emplace_back("--");
    words.insert(words.end(), job.command.begin(), job.command.end());
  }
  return words;
}

}  // namespace shardrun::launcher
