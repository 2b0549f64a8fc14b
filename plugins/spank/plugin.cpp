// shardrun_spank.so: gives what a plain srun starts the environment and the binding that `shardrun run` gives
// (docs/spank.md).
//
// Slurm loads it into srun, sbatch, salloc, slurmd and slurmstepd, for every job. Without --shardrun it registers
// that option and does nothing else. Slurm calls
//   slurm_spank_init            everywhere, as root in daemons: registers the option; in srun, sets defaults for srun
//   option callback             submit side: checks the spec, so that nothing is asked for or started when it is wrong
//   slurm_spank_init_post_opt   submit side: makes the spec's path absolute for all who will read it
//   slurm_spank_task_init       in the task's process, as its user, just before exec: variables and CPUs, and how many tasks there
//                               are: a step that is refused in srun, once it is made, keeps its CPUs until its allocation ends
// No file of a user is read with other rights than the user's. No exception leaves a function of this file.
//
// Thread rule: as Slurm calls it, one call at a time; no state is kept between calls.
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include <slurm/slurm.h>
extern "C" {  // the header declares its functions without saying so
#include <slurm/spank.h>
}

#include "plugins/spank/node_side.h"
#include "plugins/spank/option.h"
#include "plugins/spank/submit_side.h"
#include "runtime/base/io.h"
#include "runtime/contract/exit_code.h"
#include "runtime/rank/binding.h"

extern "C" {
extern const char plugin_name[];
extern const char plugin_type[];
extern const unsigned int plugin_version;
extern const unsigned int spank_plugin_version;
SPANK_PLUGIN(shardrun, 1)
}

namespace shardrun::spank {
namespace {

using base::Code;
using base::Error;
using base::Result;

constexpr int kRefuse = -1;  // all callers in Slurm take it for a failure
constexpr uint64_t kLongestCommandLine = 8 << 20;

int refuse(const Error& error) {
  slurm_spank_log("shardrun: error: %s", error.to_string().c_str());
  return kRefuse;
}

template <typename Body>
int guarded(const Body& body) noexcept {
  try {
    return body();
  } catch (const std::exception& failure) {
    slurm_spank_log("shardrun: error: %s", failure.what());
  } catch (...) {
    slurm_spank_log("shardrun: error: an exception without a name");
  }
  return kRefuse;
}

int on_option(int, const char* value, int remote) {
  if (remote != 0 || value == nullptr || *value == '\0') return ESPANK_SUCCESS;
  return guarded([&] {
    auto spec = check_job(value);
    if (!spec) return refuse(spec.error());
    for (const std::string& line : sections_without_effect(*spec))
      slurm_spank_log("shardrun: warning: %s", line.c_str());
    return int{ESPANK_SUCCESS};
  });
}

spank_option the_option() {
  return {
      const_cast<char*>(kOption),
      const_cast<char*>("job.toml"),
      const_cast<char*>("give tasks the environment and binding that shardrun gives the ranks of this job; "
                        "with no file, do not"),
      /*has_arg=*/1,
      /*val=*/0,
      on_option};
}

// Returns nullopt if the option was not given, or was given without a file.
std::optional<std::string> given_spec(spank_t spank) {
  spank_option option = the_option();
  char* value = nullptr;
  if (spank_option_getopt(spank, &option, &value) != ESPANK_SUCCESS || value == nullptr || *value == '\0')
    return std::nullopt;
  return value;
}

std::string current_directory() {
  std::error_code ignored;
  return std::filesystem::current_path(ignored).string();
}

// A spec that cannot be read is left for the option's callback to refuse.
int set_srun_defaults() {
  const auto arguments = base::read_file("/proc/self/cmdline", kLongestCommandLine);
  if (!arguments) return ESPANK_SUCCESS;
  auto value = find_option(split_at_zeros(*arguments));
  const auto environment = contract::process_environment();
  if (!value) value = environment(contract::kSlurmJobSpecVariable);
  if (!value || value->empty()) return ESPANK_SUCCESS;
  const auto spec = check_job(*value);
  if (!spec) return ESPANK_SUCCESS;
  for (const auto& [name, text] : srun_defaults(*spec, environment, current_directory()))
    ::setenv(name.c_str(), text.c_str(), /*overwrite=*/0);
  ::setenv(kDefaultsVariable, "1", /*overwrite=*/1);
  return ESPANK_SUCCESS;
}

int settle_option(spank_t spank, bool is_srun) {
  const auto environment = contract::process_environment();
  const std::string value = environment(kStepVariable).value_or("");
  const bool has_defaults = environment(kDefaultsVariable).has_value();
  ::unsetenv(kDefaultsVariable);
  if (is_srun && value.empty() == has_defaults) {
    return refuse(
        Error(Code::kInvalid, value.empty()
                                  ? "--shardrun behind the program's name is the program's; write -- before "
                                    "the program"
                                  : "write --shardrun=FILE as the first option of srun"));
  }
  if (value.empty()) return ESPANK_SUCCESS;
  const auto spec = check_job(value);
  if (!spec) return refuse(spec.error());
  if (is_srun) {
    if (const auto possible = check_here(*spec, environment, current_directory()); !possible)
      return refuse(possible.error());
  }
  const std::string path = absolute_spec(value, current_directory());
  ::setenv(kStepVariable, path.c_str(), /*overwrite=*/1);
  if (!is_srun) spank_job_control_setenv(spank, kStepVariable, path.c_str(), /*overwrite=*/1);
  return ESPANK_SUCCESS;
}

contract::EnvironmentLookup environment_of(spank_t spank) {
  std::map<std::string, std::string> variables;
  char** list = nullptr;
  if (spank_get_item(spank, S_JOB_ENV, &list) == ESPANK_SUCCESS) {
    for (; list != nullptr && *list != nullptr; ++list) {
      const std::string_view variable = *list;
      const size_t equals = variable.find('=');
      if (equals != std::string_view::npos)
        variables.emplace(variable.substr(0, equals), variable.substr(equals + 1));
    }
  }
  return [variables = std::move(variables)](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional<std::string>(found->second);
  };
}

Result<void> become_rank(spank_t spank, const std::string& path) {
  uid_t user = 0;
  Step step;
  if (spank_get_item(spank, S_JOB_UID, &user) != ESPANK_SUCCESS ||
      spank_get_item(spank, S_JOB_ID, &step.job) != ESPANK_SUCCESS ||
      spank_get_item(spank, S_JOB_STEPID, &step.step) != ESPANK_SUCCESS ||
      spank_get_item(spank, S_SLURM_RESTART_COUNT, &step.restarts) != ESPANK_SUCCESS) {
    return Error(Code::kUnsupported, "this Slurm does not say whose step this is");
  }
  if (::geteuid() != user || ::getuid() != user)
    return Error(Code::kRefused, "the task does not run as its user yet; no file of the user is read");
  step.working_directory = current_directory();
  ASSIGN_OR_RETURN(auto task,
                   prepare_task(absolute_spec(path, step.working_directory), step, environment_of(spank)));
  for (const auto& [name, value] : task.variables) {
    if (spank_setenv(spank, name.c_str(), value.c_str(), /*overwrite=*/1) != ESPANK_SUCCESS)
      return Error(Code::kIo, "Slurm did not take the variable " + name);
  }
  if (task.binding.cpus.empty()) return {};
  return rank::bind_process(task.binding.cpus);
}

int start_task(spank_t spank) {
  uint32_t step = 0;
  const auto path = given_spec(spank);
  // A batch script is no rank, and neither is the shell of an interactive step.
  if (!path || spank_get_item(spank, S_JOB_STEPID, &step) != ESPANK_SUCCESS ||
      step > SLURM_MAX_NORMAL_STEP_ID)
    return ESPANK_SUCCESS;
  const auto ready = become_rank(spank, *path);
  if (ready) return ESPANK_SUCCESS;
  if (!ready.error().message().empty()) refuse(ready.error());
  // Slurm goes on after a refusal of a plugin that plugstack.conf calls optional; a program that took another's place
  // for its own must not start. This process is the task's, forked for exec.
  ::_exit(contract::exit_code_of(ready.error().code()));
}

}  // namespace
}  // namespace shardrun::spank

using shardrun::spank::guarded;

extern "C" {

int slurm_spank_init(spank_t spank, int, char**) {
  return guarded([&] {
    const spank_context_t context = spank_context();
    if (context != S_CTX_LOCAL && context != S_CTX_ALLOCATOR && context != S_CTX_REMOTE)
      return int{ESPANK_SUCCESS};
    spank_option option = shardrun::spank::the_option();
    if (const int status = spank_option_register(spank, &option); status != ESPANK_SUCCESS) return status;
    return context == S_CTX_LOCAL ? shardrun::spank::set_srun_defaults() : int{ESPANK_SUCCESS};
  });
}

int slurm_spank_init_post_opt(spank_t spank, int, char**) {
  return guarded([&] {
    const spank_context_t context = spank_context();
    if (context != S_CTX_LOCAL && context != S_CTX_ALLOCATOR) return int{ESPANK_SUCCESS};
    return shardrun::spank::settle_option(spank, context == S_CTX_LOCAL);
  });
}

int slurm_spank_task_init(spank_t spank, int, char**) {
  return guarded([&] { return shardrun::spank::start_task(spank); });
}

}  // extern "C"
