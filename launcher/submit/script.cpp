#include "launcher/submit/script.h"

#include <algorithm>

#include <fmt/format.h>

#include "launcher/submit/slurm_options.h"
#include "runtime/base/visible.h"

namespace shardrun::launcher {
namespace {

using base::Code;
using base::Error;
using base::Result;

// Slurm expands % and \ in file names, and sbatch knows no way to write a quotation mark inside of others.
Result<void> check_path(const std::string& what, const std::string& path) {
  if (base::visible(path) == path && path.find_first_of("%\\\"\t") == std::string::npos) return {};
  return Error(Code::kInvalid,
               fmt::format("the {} {} has a character that Slurm's file names cannot carry; use a path in "
                           "UTF-8 without %, \\, \" and control characters",
                           what, shell_quoted(path)));
}

// Returns a path that check_path() takes as a part of a word of an #SBATCH line, which a blank or a # would end.
std::string quoted_for_sbatch(const std::string& path) {
  for (const char c : path) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!plain && std::string_view("/._-+=:@,~").find(c) == std::string_view::npos) return '"' + path + '"';
  }
  return path;
}

std::string slurm_time(std::chrono::seconds limit) {
  const int64_t seconds = limit.count();
  return fmt::format("{}-{:02}:{:02}:{:02}", seconds / 86400, seconds / 3600 % 24, seconds / 60 % 60,
                     seconds % 60);
}

// The lines that run the conductor. Where ranks outlive one that was killed, the script starts another, which takes them over;
// Slurm's signal is for the script alone, and a second one is for the conductor.
std::string conducting_lines(const spec::JobSpec& spec, const std::string& shardrun, const std::string& run) {
  std::string lines = "# What runs is written in job.toml and plan.json of the run directory.\n";
  if (spec.fault_tolerance.conductor_timeout.count() == 0)
    return lines + fmt::format("exec {} run --quiet --run-directory {}\n", shardrun, run);
  return lines + fmt::format(
                     R"(trap 'kill -TERM "$conductor"' TERM
way=--run-directory
for _ in 1 2 3 4 5; do
  {} run --quiet "$way" {} &
  conductor=$!
  while wait "$conductor"; code=$?; [ "$code" -gt 128 ] && kill -0 "$conductor" 2>/dev/null; do :; done
  [ "$code" -gt 128 ] || break
  way=--attach
done
exit "$code"
)",
                     shardrun, run);
}

// Whether [slurm] gres names the GPUs, perhaps by type. Slurm refuses a number of them beside that.
bool names_gpus(const std::string& gres) {
  for (size_t begin = 0; begin < gres.size();) {
    const size_t end = std::min(gres.find(',', begin), gres.size());
    const std::string one = gres.substr(begin, end - begin);
    if (one == "gpu" || one.starts_with("gpu:")) return true;
    begin = end + 1;
  }
  return false;
}

}  // namespace

std::string shell_quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

std::vector<std::string> allocation_options(const spec::JobSpec& spec) {
  const spec::ResourcesSpec& resources = spec.resources;
  std::vector<std::string> options = {
      "--job-name=" + spec.name, fmt::format("--nodes={}", resources.nodes + spec.fault_tolerance.spares),
      fmt::format("--ntasks-per-node={}", resources.ranks_per_node),
      fmt::format("--cpus-per-task={}", resources.cpus_per_rank)};
  if (resources.time_limit) options.push_back("--time=" + slurm_time(*resources.time_limit));
  if (!resources.partition.empty()) options.push_back("--partition=" + resources.partition);
  if (!resources.account.empty()) options.push_back("--account=" + resources.account);
  if (!resources.constraint.empty()) options.push_back("--constraint=" + resources.constraint);
  if (!resources.exclude.empty()) options.push_back("--exclude=" + resources.exclude);
  if (resources.exclusive) options.push_back("--exclusive");
  if (resources.gpus_per_node > 0 && !names_gpus(spec.slurm.gres))
    options.push_back(fmt::format("--gpus-per-node={}", resources.gpus_per_node));
  // A node that fails must not take the allocation with it: the job goes on without that node.
  if (spec.fault_tolerance.max_restarts > 0) options.push_back("--no-kill");
  return options;
}

Result<std::string> sbatch_script(const spec::JobSpec& spec, const ScriptPaths& paths) {
  RETURN_IF_ERROR(check_path("run directory", paths.runs_directory));
  RETURN_IF_ERROR(check_path("working directory", paths.working_directory));
  RETURN_IF_ERROR(check_path("path of shardrun", paths.shardrun_program));
  std::vector<std::string> options = allocation_options(spec);
  options.push_back("--chdir=" + quoted_for_sbatch(paths.working_directory));
  if (const std::string dependency = slurm_dependency(spec, paths.after); !dependency.empty()) {
    options.push_back("--dependency=" + dependency);
    options.push_back("--kill-on-invalid-dep=yes");
  }
  const bool is_array = paths.array_elements > 0;
  if (is_array) {
    const std::string limit = paths.at_a_time > 0 ? fmt::format("%{}", paths.at_a_time) : "";
    options.push_back(fmt::format("--array=0-{}{}", paths.array_elements - 1, limit));
  }
  const bool goes_on = !paths.run_directory.empty();
  if (goes_on) {
    RETURN_IF_ERROR(check_path("run directory", paths.run_directory));
    options.push_back("--output=" + quoted_for_sbatch(paths.run_directory) + "/slurm.out");
  } else {
    options.push_back(fmt::format("--output={}/{}/slurm.out", quoted_for_sbatch(paths.runs_directory),
                                  is_array ? "%A_%a" : "%j"));
  }
  options.push_back("--open-mode=append");
  options.push_back("--wait-all-nodes=1");
  options.push_back(spec.fault_tolerance.requeue ? "--requeue" : "--no-requeue");
  if (spec.resources.time_limit) {
    options.push_back(fmt::format("--signal=B:TERM@{}", spec.fault_tolerance.signal_lead.count()));
  }
  std::string script = "#!/bin/bash\n";
  for (const std::string& option : options) script += "#SBATCH " + option + "\n";
  script += conducting_lines(
      spec, shell_quoted(paths.shardrun_program),
      goes_on ? shell_quoted(paths.run_directory)
              : shell_quoted(paths.runs_directory) +
                    (is_array ? "/\"${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID\"" : "/\"$SLURM_JOB_ID\""));
  return script;
}

}  // namespace shardrun::launcher
