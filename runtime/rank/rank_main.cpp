#include "runtime/rank/rank_main.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "runtime/base/io.h"
#include "runtime/base/unix_time.h"
#include "runtime/contract/container_runtime.h"
#include "runtime/contract/exit_code.h"
#include "runtime/contract/rank_job.h"
#include "runtime/rank/container.h"
#include "runtime/rank/setup.h"
#include "runtime/rank/supervisor.h"
#include "runtime/record/exit_lines.h"
#include "runtime/record/run_dir.h"
#include "runtime/record/run_record.h"

namespace shardrun::rank {
namespace {

using base::Code;
using base::Result;

int fail(const base::Error& error, int exit_code) {
  fmt::print(stderr, "shardrun-rank: {}\n", error.to_string());
  return exit_code;
}

// The same, of a supervisor that cannot start its program: the rank's account tells the reason, so that the verdict does.
int fail_with_account(const contract::RankJob& job, const base::Error& error) {
  record::RankExit exit;
  exit.global_rank = job.env.global_rank;
  exit.node = job.env.node_name;
  exit.ended = base::unix_now();
  exit.exit_code = contract::kExitInfrastructure;
  exit.last_words = error.to_string();
  const record::RunDir run{job.env.run_directory};
  if (auto written = record::append_rank_exit(run, job.env.attempt, exit); !written)
    (void)fail(written.error().context("saying why the rank's program was not started"),
               contract::kExitInfrastructure);
  return fail(error, contract::kExitInfrastructure);
}

std::string heartbeat_file(const contract::RankJob& job) {
  return record::RunDir{job.env.run_directory}.rank_alive(job.env.attempt, job.env.global_rank);
}

using Variables = std::map<std::string, std::string>;

// Does in one pass what setenv() does with one for each. What environ points to stays until the end.
void set_all(const Variables& variables) {
  std::vector<char*> all;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text(*variable);
    if (variables.count(std::string(text.substr(0, text.find('=')))) == 0) all.push_back(*variable);
  }
  for (const auto& [name, value] : variables) all.push_back(::strdup((name + '=' + value).c_str()));
  all.push_back(nullptr);
  environ = std::make_unique<char*[]>(all.size()).release();
  std::copy(all.begin(), all.end(), environ);
}

// Returns the variables that the spec adds; a reference that leads nowhere is the rank's failure.
Result<Variables> apply_environment(const contract::RankJob& job, bool command) {
  const auto inherited = contract::process_environment();
  auto given = command ? contract::command_environment(job.env, job.plan, job.spec, inherited)
                       : contract::resolve_environment(job.spec.environment, inherited);
  if (!given) return given;
  if (command) {
    given->emplace("SHARDRUN_HEARTBEAT_FILE", heartbeat_file(job));
    const bool tells = job.env.global_rank == 0;  // the others' lines would count each step again
    given->emplace("SHARDRUN_METRICS_FILE",
                   tells ? record::RunDir{job.env.run_directory}.metrics_jsonl() : "/dev/null");
  }
  set_all(*given);
  return given;
}

// Returns what runs the command in its image, and sets the variables of both.
Result<std::vector<std::string>> contained_command(const contract::RankJob& job) {
  const auto environment = contract::process_environment();
  ASSIGN_OR_RETURN(const auto runtime, contract::find_container_runtime(job.spec, environment));
  ASSIGN_OR_RETURN(const auto variables, apply_environment(job, /*command=*/true));
  const auto cache = job.plan.variables.find("SHARDRUN_COMPILE_CACHE");
  const std::string folders[] = {job.plan.working_directory, job.env.run_directory,
                                 cache == job.plan.variables.end() ? "" : cache->second,
                                 environment("PMIX_SERVER_TMPDIR").value_or("")};
  ASSIGN_OR_RETURN(auto contained,
                   contain(job.spec, runtime, variables, job.plan.working_directory, folders));
  set_all(contained.environment);
  return std::move(contained.argv);
}

// Returns what the child executes, with its variables set here already.
Result<std::vector<std::string>> program_of(const contract::RankJob& job,
                                            Result<std::string> (*find_runtime)(), int progress_fd) {
  const bool command = !job.spec.program.command.empty();
  // By pyxis the whole rank is in its image already.
  const bool pyxis = job.spec.container.runtime == spec::ContainerRuntime::kPyxis;
  if (job.spec.container.is_given() && !pyxis) return contained_command(job);
  RETURN_IF_ERROR(apply_environment(job, command));
  if (command) return behind_setup(job.spec.program.setup, job.spec.program.command);
  ASSIGN_OR_RETURN(const auto runtime, find_runtime());
  return std::vector<std::string>{runtime, contract::kTrainWord, SHARDRUN_VERSION,
                                  std::to_string(progress_fd)};
}

std::vector<std::string> inherited_variables() {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) variables.emplace_back(*variable);
  return variables;
}

// The local scheduler names itself in the environment so that a rank does not outlive it, however it ended; unless the job lets
// ranks wait for another conductor.
void die_with_launcher() {
  const char* launcher = std::getenv("SHARDRUN_LAUNCHER_PID");
  if (launcher == nullptr) return;
  ::prctl(PR_SET_PDEATHSIG, SIGQUIT);
  if (std::to_string(::getppid()) != launcher) std::_Exit(contract::kExitInfrastructure);
  ::unsetenv("SHARDRUN_LAUNCHER_PID");
}

// Returns whether the scheduler has set kStoppedIsDoneVariable, which is none of the program's.
bool take_stopped_is_done() {
  const bool is_set = std::getenv(contract::kStoppedIsDoneVariable) != nullptr;
  ::unsetenv(contract::kStoppedIsDoneVariable);
  return is_set;
}

bool has_stopped_with_account(const record::RankExit& exit, const contract::RankEnv& env) {
  return exit.stopped_on_request && contract::ended_as_asked(exit) &&
         record::read_rank_exits({env.run_directory}, env.attempt).count(env.global_rank) != 0;
}

// One write for a line, so that those of a node's ranks do not mix. What a full disk does not take is missing in the trace.
void leave_phases(record::LaunchPhases& phases, const contract::RankEnv& env) {
  phases.mark("drain");
  phases.global_rank = env.global_rank;
  const std::string path = record::RunDir{env.run_directory}.node_phases(env.attempt, env.node_name);
  const base::UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, record::kFileMode));
  if (fd) (void)base::write_all(fd.get(), to_line(phases), path);
}

}  // namespace

int run_rank(Result<std::string> (*find_runtime)()) {
  die_with_launcher();
  const bool stopped_is_done = take_stopped_is_done();
  record::LaunchPhases phases = record::phases_of_this_process();
  phases.mark("exec");
  auto job = contract::read_rank_job(&phases);
  ::unsetenv(contract::kRanksByVariable);  // the program is told by shardrun's own variables
  if (!job) {
    const bool unseen = job.error().code() == Code::kRefused;
    return fail(job.error(), unseen ? contract::kExitRefused : contract::kExitBadInput);
  }
  if (!job->plan.working_directory.empty() && ::chdir(job->plan.working_directory.c_str()) != 0) {
    const auto error = base::errno_error(Code::kIo, job->plan.working_directory, errno);
    return fail_with_account(
        *job, base::Error(error.code(),
                          "the job's working directory cannot be entered on this node: " + error.message() +
                              "; start it from a folder that every node sees"));
  }
  const bool is_trainer = job->spec.program.command.empty();
  base::UniqueFd progress_fd;
  std::optional<contract::SharedProgress> progress;
  if (is_trainer) {
    auto made = contract::make_shared_progress();
    if (!made) return fail_with_account(*job, made.error());
    progress_fd = std::move(*made);
    auto opened = contract::open_shared_progress(progress_fd.get());
    if (!opened) return fail_with_account(*job, opened.error());
    progress = std::move(*opened);
  }
  // Before the program's own variables are set here.
  auto secrets = find_secrets(job->spec.environment, inherited_variables());
  SupervisorRequest request{.env = job->env, .program = program_of(*job, find_runtime, progress_fd.get())};
  request.binding = choose_binding(job->env.local_rank, job->env.local_world_size, job->plan.cpus_per_rank);
  request.secrets = std::move(secrets);
  if (progress) request.progress = progress->get();
  request.progress_fd = progress_fd.get();
  if (job->spec.fault_tolerance.hang_timeout && !is_trainer) request.heartbeat_file = heartbeat_file(*job);
  request.conductor_timeout = job->spec.fault_tolerance.conductor_timeout;
  request.output_limit_bytes = job->plan.rank_output_bytes.value_or(0);
  request.exit_4_is_peer_lost = is_trainer;
  request.phases = &phases;
  phases.mark("environment_and_binding");
  auto exit = supervise(request);
  if (!exit) return fail_with_account(*job, exit.error());
  if (job->plan.trace_launch.value_or(false)) leave_phases(phases, job->env);
  if (stopped_is_done && has_stopped_with_account(*exit, job->env)) end_with(contract::kExitDone);
  end_like(*exit);
}

}  // namespace shardrun::rank
