#include "launcher/submit/slurm_options.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "runtime/spec/spec_reader.h"

namespace shardrun::launcher {
namespace {

using base::Code;
using base::Error;
using base::Result;

enum class Takes { kNothing, kValue, kEither };

// Finds each "--name", "--name=value" and "--name[=value]" of a help text; words in running text do no harm.
std::map<std::string, Takes> long_options(const std::string& help) {
  std::map<std::string, Takes> found;
  for (size_t at = help.find("--"); at != std::string::npos; at = help.find("--", at + 1)) {
    if (at > 0 && help[at - 1] != ' ' && help[at - 1] != '\n' && help[at - 1] != '\t') continue;
    const size_t begin = at + 2;
    const size_t end =
        std::min(help.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-", begin), help.size());
    if (end == begin) continue;
    const bool value = end < help.size() && help[end] == '=';
    const bool maybe = end + 1 < help.size() && help[end] == '[' && help[end + 1] == '=';
    const Takes takes = value ? Takes::kValue : maybe ? Takes::kEither : Takes::kNothing;
    found.emplace(help.substr(begin, end - begin), takes);
  }
  return found;
}

// The keys of [slurm] that are one option each, in the order of the section.
std::vector<std::pair<const char*, std::string>> keys_of(const spec::SlurmSpec& slurm) {
  return {{"qos", slurm.qos},
          {"reservation", slurm.reservation},
          {"mem", slurm.mem},
          {"mem-per-cpu", slurm.mem_per_cpu},
          {"gres", slurm.gres},
          {"licenses", slurm.licenses},
          {"switches", slurm.switches},
          {"segment", slurm.segment > 0 ? std::to_string(slurm.segment) : ""},
          {"nodelist", slurm.nodelist},
          {"comment", slurm.comment},
          {"mail-type", slurm.mail_type},
          {"mail-user", slurm.mail_user}};
}

std::string key_of(std::string option) {
  std::replace(option.begin(), option.end(), '-', '_');
  return "slurm." + option;
}

Result<void> check_option(const spec::JobSpec& spec, const std::string& name, const std::string& value,
                          const std::map<std::string, Takes>& known, const std::string& program) {
  const auto origin = [&] {
    return spec.origin(spec.slurm.options.count(name) > 0 ? "slurm.options." + name : key_of(name));
  };
  const auto found = known.find(name);
  if (found == known.end()) {
    std::vector<std::string> names;  // an option that has a key is spelled right
    if (spec.slurm.options.count(name) > 0)
      for (const auto& [option, takes] : known) names.push_back(option);
    const std::string near = spec::nearest_name(name, names);
    return Error(Code::kInvalid,
                 fmt::format("{}: this {} has no option --{}; {}", origin(), program, name,
                             near.empty() ? fmt::format("remove it, or see {} --help", program)
                                          : fmt::format("did you mean \"{}\"?", near)));
  }
  if (found->second == Takes::kValue && value.empty())
    return Error(Code::kInvalid,
                 fmt::format("{}: --{} takes a value; write {} = \"…\"", origin(), name, name));
  if (found->second == Takes::kNothing && !value.empty())
    return Error(Code::kInvalid,
                 fmt::format("{}: --{} takes no value; write {} = true", origin(), name, name));
  return {};
}

}  // namespace

std::vector<std::string> slurm_options(const spec::JobSpec& spec) {
  std::vector<std::string> words;
  for (const auto& [name, value] : keys_of(spec.slurm))
    if (!value.empty()) words.push_back(fmt::format("--{}={}", name, value));
  for (const auto& [name, value] : spec.slurm.options)
    words.push_back(value.empty() ? "--" + name : fmt::format("--{}={}", name, value));
  return words;
}

std::vector<std::string> variables_against(const spec::JobSpec& spec, const std::string& prefix) {
  std::vector<std::string> names;
  for (const char* name :
       {"ARRAY_INX", "CPUS_PER_GPU", "ERROR", "GPUS", "GPUS_PER_NODE", "GPUS_PER_TASK", "INPUT", "JOB_NAME",
        "NO_KILL", "NO_REQUEUE", "OPEN_MODE", "OUTPUT", "REQUEUE", "SIGNAL", "WAIT", "WAIT_ALL_NODES"})
    names.push_back(prefix + name);
  const spec::ResourcesSpec& resources = spec.resources;
  if (resources.time_limit) names.push_back(prefix + "TIMELIMIT");
  if (!resources.partition.empty()) names.push_back(prefix + "PARTITION");
  if (!resources.account.empty()) names.push_back(prefix + "ACCOUNT");
  if (!resources.constraint.empty()) names.push_back(prefix + "CONSTRAINT");
  if (resources.exclusive) names.push_back(prefix + "EXCLUSIVE");
  // Of a job that we are typed in. Slurm replaces those that the new job has, too, and leaves it the others.
  for (const char* name : {"ARRAY_JOB_ID", "ARRAY_TASK_COUNT", "ARRAY_TASK_ID", "ARRAY_TASK_MAX",
                           "ARRAY_TASK_MIN", "ARRAY_TASK_STEP", "CPUS_PER_GPU", "GPUS", "GPUS_PER_NODE",
                           "GPUS_PER_SOCKET", "GPUS_PER_TASK", "HET_SIZE", "MEM_PER_CPU", "MEM_PER_GPU",
                           "MEM_PER_NODE", "NTASKS_PER_GPU", "RESTART_COUNT", "TRES_PER_TASK"})
    names.push_back(std::string("SLURM_") + name);
  return names;
}

std::string slurm_dependency(const spec::JobSpec& spec, const std::string& after) {
  std::string all = after.empty() ? "" : "afterok:" + after;
  if (!all.empty() && !spec.slurm.dependency.empty()) all += ",";
  return all + spec.slurm.dependency;
}

Result<void> check_slurm_options(const spec::JobSpec& spec, const std::string& help,
                                 const std::string& program) {
  const auto known = long_options(help);
  for (const auto& [name, value] : keys_of(spec.slurm))
    if (!value.empty()) RETURN_IF_ERROR(check_option(spec, name, value, known, program));
  for (const auto& [name, value] : spec.slurm.options)
    RETURN_IF_ERROR(check_option(spec, name, value, known, program));
  return {};
}

}  // namespace shardrun::launcher
