#include "launcher/runs/common.h"

#include <poll.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include <fmt/format.h>

#include "launcher/plan/precompile.h"
#include "launcher/view/terminal.h"
#include "runtime/base/command.h"
#include "runtime/base/say.h"
#include "runtime/base/trust.h"
#include "runtime/base/unix_time.h"
#include "runtime/base/visible.h"
#include "runtime/contract/compile_cache.h"
#include "runtime/contract/epoch.h"
#include "runtime/contract/exit_code.h"
#include "runtime/contract/rank_env.h"

namespace shardrun::launcher {
namespace {

namespace fs = std::filesystem;
using base::Code;
using base::Error;
using base::Result;

bool is_run(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path / "plan.json", ignored) || fs::exists(path / "record.json", ignored);
}

// Whether the folder, or the way to it, is closed to us: a run directory is its user's alone.
bool is_closed(const fs::path& folder) {
  std::error_code failure;
  (void)fs::exists(folder / "plan.json", failure);
  return failure == std::errc::permission_denied;
}

// Returns the folder that `name` may mean and that is closed to us; "" where there is none.
std::string closed_folder(const std::string& name, bool one_part, const std::string& runs) {
  if (is_closed(name)) return absolute_path(name);
  if (!one_part) return "";
  if (is_closed(fs::path(runs) / name)) return absolute_path(is_closed(runs) ? runs : runs + "/" + name);
  std::error_code ignored;
  for (const auto& job : fs::directory_iterator(runs, ignored)) {
    const fs::path run = job.path() / name;
    if (fs::exists(run, ignored) && is_closed(run)) return absolute_path(run.string());
  }
  return "";
}

using Found = std::pair<fs::file_time_type, fs::path>;

// A job's start writes its plan anew, but not what was submitted.
fs::file_time_type begin_of(const fs::path& run) {
  std::error_code failure;
  const auto submitted = fs::last_write_time(run / "submit.sh", failure);
  return failure ? fs::last_write_time(run / "plan.json", failure) : submitted;
}

void add_runs_of(const fs::path& job, std::vector<Found>& found) {
  std::error_code ignored;
  for (const auto& run : fs::directory_iterator(job, ignored)) {
    if (!run.is_symlink(ignored) && is_run(run.path())) found.emplace_back(begin_of(run.path()), run.path());
  }
}

std::vector<record::RunDir> newest_first(std::vector<Found> found) {
  std::sort(found.rbegin(), found.rend());
  std::vector<record::RunDir> runs;
  for (const auto& item : found) runs.push_back({absolute_path(item.second.string())});
  return runs;
}

std::string local_id() {
  return fmt::format("local-{}-{}", base::utc_text(base::unix_now(), "%Y%m%d-%H%M%S"), ::getpid());
}

// The job's id, and a number behind it for the second run inside one allocation.
std::string slurm_id(const std::string& runs) {
  const std::string job = std::getenv("SLURM_JOB_ID");
  std::string id = job;
  std::error_code ignored;
  for (int again = 2; fs::exists(fs::path(runs) / id, ignored); ++again)
    id = fmt::format("{}-{}", job, again);
  return id;
}

// Returns whether the reader of our output is gone, who misses nothing.
bool nobody_reads() {
  pollfd out{STDOUT_FILENO, POLLOUT, 0};
  return ::poll(&out, 1, 0) == 1 && (out.revents & (POLLERR | POLLHUP)) != 0;
}

void say_lost_output(int failure) {
  if (!nobody_reads())
    say_error(fmt::format("shardrun: error: writing standard output: {}\n", std::strerror(failure)));
}

}  // namespace

int fail(const Error& error, const CommonOptions& common) {
  say_error(fmt::format("shardrun: error: {}\n", common.verbose ? base::visible_lines(error.to_chain_string())
                                                                : base::visible(error.to_string())));
  return contract::exit_code_of(error.code());
}

void warn(const std::vector<std::string>& warnings) {
  for (const std::string& warning : warnings) {
    say_error(fmt::format("shardrun: warning: {}\n", base::visible(warning)));
  }
}

bool write_out(std::string_view text) {
  if (std::ferror(stdout) != 0) return false;  // it was said
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size()) return true;
  say_lost_output(errno);
  return false;
}

bool flush_out() {
  if (std::ferror(stdout) != 0) return false;
  if (std::fflush(stdout) == 0) return true;
  say_lost_output(errno);
  return false;
}

int finish_output(int exit_code) {
  return flush_out() || nobody_reads() || exit_code != contract::kExitDone ? exit_code
                                                                           : contract::kExitInfrastructure;
}

void print_text(const std::string& text) {
  write_out(shown_on(look_at_terminal(STDOUT_FILENO, contract::process_environment()), text));
}

void say_error(const std::string& text) {
  base::say(STDERR_FILENO, shown_on(look_at_terminal(STDERR_FILENO, contract::process_environment()), text));
}

Result<Installation> find_installation() {
  std::error_code failure;
  const fs::path self = fs::read_symlink("/proc/self/exe", failure);
  if (failure) return Error(Code::kIo, "/proc/self/exe cannot be read: is /proc mounted?");
  Installation here;
  here.shardrun_program = self.string();
  here.rank_program = (self.parent_path() / "shardrun-rank").string();
  here.plugin_directory = (self.parent_path().parent_path() / "lib" / "shardrun").string();
  if (::access(here.rank_program.c_str(), X_OK) != 0) {
    return Error(Code::kNotFound,
                 here.rank_program + " is not there; install or build shardrun-rank beside shardrun");
  }
  // A supervisor, which looks no users up, cannot ask: whoever exchanged its trainer would have his own say.
  for (const std::string& program : {here.rank_program, here.plugin_directory + "/shardrun-rank"}) {
    if (auto ours = base::refuse_if_others_write(program); !ours && ours.error().code() == Code::kRefused)
      return std::move(ours).error().context("ranks run " + program);
  }
  return here;
}

Error become(const std::vector<std::string>& argv, const std::string& otherwise) {
  ::execvp(argv[0].c_str(), base::pointers_to(argv).data());
  return otherwise.empty() ? base::errno_error(Code::kIo, "starting " + argv[0], errno)
                           : base::errno_error(Code::kNotFound, otherwise, errno);
}

bool inside_allocation() {
  return std::getenv("SLURM_JOB_ID") != nullptr;
}

bool wants_slurm(const spec::JobSpec& spec) {
  if (spec.cluster.scheduler == spec::SchedulerKind::kAuto) return inside_allocation();
  return spec.cluster.scheduler == spec::SchedulerKind::kSlurm;
}

const char* scheduler_of(const spec::JobSpec& spec) {
  if (spec.cluster.scheduler == spec::SchedulerKind::kMpirun) return "mpirun";
  return wants_slurm(spec) ? "slurm" : "local";
}

std::string new_run_id(const std::string& runs, bool slurm) {
  return slurm ? slurm_id(runs) : local_id();
}

Result<LoadedSpec> load_spec_to_start(const std::string& path, const std::vector<std::string>& overrides) {
  ASSIGN_OR_RETURN(auto loaded, load_spec(path, overrides));
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return loaded;  // a pipe, say, which was read once
  if (auto ours = base::refuse_if_others_write(path); !ours)
    return std::move(ours).error().context("a job's commands are read from its spec");
  return loaded;
}

Result<PlanContext> plan_context(const spec::JobSpec& spec, const Installation& installed,
                                 const std::vector<std::string>& overrides, const std::string& scheduler,
                                 const std::string& working_directory) {
  PlanContext context;
  context.scheduler = scheduler;
  context.working_directory = working_directory.empty() ? current_directory() : working_directory;
  context.rank_program = installed.rank_program;
  context.plugin_directory = installed.plugin_directory;
  context.overrides = overrides;
  if (compiles_by_command(spec)) {
    ASSIGN_OR_RETURN(context.cache, contract::compile_cache_folder(spec, context.working_directory));
  }
  return context;
}

std::string current_directory() {
  std::error_code ignored;
  return fs::current_path(ignored).string();
}

std::string absolute_path(const std::string& path) {
  std::string absolute = (fs::path(current_directory()) / path).lexically_normal().string();
  while (absolute.size() > 1 && absolute.back() == '/') absolute.pop_back();
  return absolute;
}

std::string runs_of(const spec::JobSpec& spec) {
  return absolute_path(spec.logging.directory) + "/" + spec.name;
}

std::vector<record::RunDir> all_runs(const CommonOptions& common) {
  std::vector<Found> found;
  std::error_code ignored;
  for (const auto& job : fs::directory_iterator(common.runs_directory, ignored))
    add_runs_of(job.path(), found);
  return newest_first(std::move(found));
}

Result<int> count_closed_runs(const CommonOptions& common) {
  std::error_code failure, ignored;
  int count = 0;
  for (const auto& job : fs::directory_iterator(common.runs_directory, failure)) {
    if (job.is_symlink(ignored) || !job.is_directory(ignored)) continue;
    if (is_closed(job.path())) ++count;
    for (const auto& run : fs::directory_iterator(job.path(), ignored))
      if (!run.is_symlink(ignored) && is_closed(run.path())) ++count;
  }
  if (failure == std::errc::permission_denied)
    return Error(Code::kIo,
                 absolute_path(common.runs_directory) + ": Permission denied; --runs DIR looks elsewhere");
  return count;
}

std::vector<record::RunDir> runs_named(const std::string& name, const CommonOptions& common) {
  std::vector<Found> found;
  add_runs_of(fs::path(common.runs_directory) / name, found);
  return newest_first(std::move(found));
}

Result<record::RunDir> find_run(const std::string& name, const CommonOptions& common) {
  std::error_code ignored;
  if (is_run(name)) return record::RunDir{fs::canonical(name, ignored).string()};
  const bool one_part = name.find('/') == std::string::npos && name != "." && name != "..";
  if (one_part) {
    if (auto runs = runs_named(name, common); !runs.empty()) return std::move(runs.front());
    const std::vector<record::RunDir> runs = all_runs(common);
    for (const record::RunDir& run : runs) {
      if (fs::path(run.root).filename() == name) return run;
    }
    for (const record::RunDir& run : runs) {  // a later job goes on in the directory of an earlier one
      if (const auto plan = read_plan(run); plan && plan->id == name) return run;
    }
  }
  if (const std::string closed = closed_folder(name, one_part, common.runs_directory); !closed.empty()) {
    return Error(
        Code::kIo,
        fmt::format(
            "{}: Permission denied: a run can be looked at by its user alone, who may pass on the page "
            "of `shardrun report`",
            closed));
  }
  return Error(Code::kNotFound,
               fmt::format("no run \"{}\": it is no run directory, and {} has no job and no id of that name; "
                           "`shardrun status` lists the runs, --runs DIR looks elsewhere",
                           name, absolute_path(common.runs_directory)));
}

// The folder that a run keeps its checkpoints in.
static Result<std::string> checkpoints_of(const record::RunDir& run) {
  ASSIGN_OR_RETURN(auto plan, read_plan(run));
  ASSIGN_OR_RETURN(const auto spec, spec::load_job_spec(run.job_toml(), plan.overrides));
  plan.run_directory = run.root;  // it may have been moved since
  return contract::checkpoint_directory(spec, plan);
}

Result<std::string> find_checkpoints(const std::string& name, const CommonOptions& common) {
  std::error_code ignored;
  if (fs::exists(fs::path(name) / "manifest.json", ignored)) return name;
  if (fs::is_regular_file(fs::path(name) / "latest", ignored))
    return name;  // of a job's name it is a link to a run
  auto run = find_run(name, common);
  if (run) return checkpoints_of(*run);
  if (fs::is_directory(name, ignored)) return name;
  return std::move(run).error();
}

Result<spec::JobSpec> read_job(const record::RunDir& run) {
  ASSIGN_OR_RETURN(const auto plan, read_plan(run));
  return spec::load_job_spec(run.job_toml(), plan.overrides);
}

}  // namespace shardrun::launcher
