#include "launcher/schedule/slurm/slurm_scheduler.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string_view>

#include <fmt/format.h>

#include "launcher/schedule/slurm/node_ranges.h"
#include "launcher/schedule/slurm/srun_messages.h"
#include "launcher/schedule/step_command.h"
#include "runtime/base/command.h"
#include "runtime/base/say.h"
#include "runtime/base/text.h"
#include "runtime/base/unix_time.h"
#include "runtime/contract/container_runtime.h"
#include "runtime/contract/rank_env.h"

namespace shardrun::launcher {
namespace {

using base::Code;
using base::Error;
using base::Result;

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty())
    if (const std::string_view line = base::take_line(text); !line.empty()) lines.emplace_back(line);
  return lines;
}

// One srun and what it has said so far.
class Step : public StepCommand {
 public:
  explicit Step(const StepRequest& request)
      : StepCommand(request),
        name_(fmt::format("shardrun-{}-{}{}", ::getpid(), request.attempt,
                          request.arguments.empty() ? "" : "-" + request.arguments.front())) {}

  std::vector<std::string> arguments() const {
    const record::LaunchPlan& plan = *request().plan;
    std::vector<std::string> argv = {
        "srun",
        "--mpi=pmix",
        "--kill-on-bad-exit=1",
        "--wait=0",
        "--input=none",
        "--export=ALL",
        "--cpu-bind=none",
        "--distribution=block",
        "--job-name=" + name_,
        "--overlap",  // a step that a lost node keeps from ending must not hold up the next one
        fmt::format("--nodes={}", plan.nodes),
        "--nodelist=" + node_ranges(request().nodes),
        fmt::format("--ntasks={}", plan.world_size()),
        fmt::format("--ntasks-per-node={}", plan.ranks_per_node),
        fmt::format("--cpus-per-task={}", plan.cpus_per_rank),
        "--chdir=" + plan.working_directory};
    if (request().spec->container.runtime == spec::ContainerRuntime::kPyxis)
      for (std::string& option : contract::pyxis_options(*request().spec, plan, environment()))
        argv.push_back(std::move(option));
    argv.push_back(plan.rank_program);
    argv.insert(argv.end(), request().arguments.begin(), request().arguments.end());
    return argv;
  }

  std::map<std::string, std::string> environment() const {
    auto variables = step_environment(request(), "srun");
    // To --kill-on-bad-exit a rank that has saved and ended is a bad exit, and it would kill those that still save.
    variables[contract::kStoppedIsDoneVariable] = "1";
    // In a job that was submitted with --shardrun, the supervisors are not tasks of a plain srun.
    if (std::getenv(contract::kSlurmJobSpecVariable) != nullptr)
      variables[contract::kSlurmJobSpecVariable] = "";
    return variables;
  }

 private:
  void on_line(const std::string& line, bool) override {
    if (line.starts_with("srun: ")) keep_words(line);
    const auto message = parse_srun_line(line, request().plan->world_size());
    if (!message) return;
    if (!message->unreachable.empty()) note_unreachable(message->unreachable);
    if (message->step_aborted && !aborted_) {
      aborted_ = true;
      schedule_kill(kKillGrace);
    }
    if (message->step_cancelled && !cancelled_) {
      cancelled_ = true;
      schedule_kill(request().spec->fault_tolerance.stop_grace);
    }
    for (record::RankExit exit : message->exits) {
      exit.ended = base::unix_now();
      exit.stopped_on_request = aborted_ || cancelled_ || stopped();
      if (exits_.emplace(exit.global_rank, exit).second && !aborted_) schedule_kill(kKillGrace);
    }
  }

  void on_stop() override {
    signal_step("TERM");
    schedule_kill(request().spec->fault_tolerance.stop_grace);
  }

  // The watch has told the supervisors to kill their programs. Slurm kills those that do not hear it, and nobody
  // waits for those that Slurm cannot reach.
  void on_alarm() override {
    aborted_ = true;
    schedule_kill(kKillGrace);
  }

  // Slurm knows the step by number; we know it by the name that we gave it.
  void signal_step(const char* signal) {
    if (step_.empty()) find_step();
    if (step_.empty()) {
      signal_command(SIGTERM);  // it has not started yet: srun gives up
      return;
    }
    const std::vector<std::string> argv = {"scancel", fmt::format("--signal={}", signal), step_};
    if (auto sent = base::run_command(argv, "", command_limit()); !sent) {
      base::say(STDERR_FILENO, fmt::format("shardrun: {}\n", sent.error().to_string()));
    }
  }

  // slurmctld may be as dead as the node.
  std::chrono::milliseconds command_limit() const {
    return std::chrono::seconds(alarmed() ? 1 : kills_ > 0 ? 5 : 30);
  }

  void find_step() {
    const char* job = std::getenv("SLURM_JOB_ID");
    if (job == nullptr) return;
    auto steps = base::run_command(
        {"squeue", "--steps", "--noheader", fmt::format("--jobs={}", job), "--format=%i %j"}, "",
        command_limit());
    if (!steps) return;
    for (const std::string& line : lines_of(steps->out)) {
      const size_t blank = line.find(' ');
      if (blank != std::string::npos && line.substr(blank + 1) == name_) step_ = line.substr(0, blank);
    }
  }

  void on_kill_time() override {
    if (++kills_ == 1) {
      signal_step("KILL");
      schedule_kill(std::chrono::seconds(
          alarmed() ? 1 : 10));  // srun itself is stuck: it is killed, and Slurm ends its step
    } else {
      signal_command(SIGKILL);
    }
  }

  std::vector<record::RankExit> known_exits() const override {
    std::vector<record::RankExit> exits;
    for (const auto& [rank, exit] : exits_) exits.push_back(exit);
    return exits;
  }

  std::string name_, step_;
  std::map<int, record::RankExit> exits_;
  bool aborted_ = false, cancelled_ = false;
  int kills_ = 0;
};

class SlurmScheduler : public Scheduler {
 public:
  Result<std::vector<std::string>> nodes(const record::LaunchPlan& plan) override {
    const char* list = std::getenv("SLURM_JOB_NODELIST");
    if (list == nullptr) {
      return Error(Code::kRefused,
                   "SLURM_JOB_NODELIST is not set: this is no Slurm allocation; use `shardrun submit`");
    }
    ASSIGN_OR_RETURN(auto hosts, base::run_command({"scontrol", "show", "hostnames", list}));
    std::vector<std::string> names = lines_of(hosts.out);
    if (names.size() < static_cast<size_t>(plan.nodes)) {
      return Error(Code::kRefused,
                   fmt::format("the job needs {} nodes and this allocation has {} ({}); ask for more, or "
                               "write --set resources.nodes={}",
                               plan.nodes, names.size(), list, names.size()));
    }
    return names;
  }

  Result<StepOutcome> run(const StepRequest& request) override {
    Step step(request);
    return step.run(step.arguments(), step.environment());
  }
};

}  // namespace

std::unique_ptr<Scheduler> make_slurm_scheduler() {
  return std::make_unique<SlurmScheduler>();
}

}  // namespace shardrun::launcher
