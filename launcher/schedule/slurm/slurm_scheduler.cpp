#include "launcher/schedule/slurm/slurm_scheduler.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/schedule/slurm/srun_messages.h"
#include "runtime/base/command.h"
#include "runtime/contract/rank_env.h"

namespace shardrun::launcher {
namespace {

using base::Code;
using base::Error;
using base::Result;
using Clock = std::chrono::steady_clock;

constexpr size_t kLongestWords = 2000;  // of srun, kept for a verdict

double unix_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    if (end > begin) lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

// One srun and what it has said so far.
class Step {
 public:
  explicit Step(const StepRequest& request)
      : request_(request),
        name_(fmt::format("shardrun-{}-{}{}", ::getpid(), request.attempt,
                          request.arguments.empty() ? "" : "-" + request.arguments.front())) {}

  Result<StepOutcome> run() {
    auto spawned = base::spawn_command(arguments(), environment(), false);
    if (!spawned) return std::move(spawned).error();
    srun_ = std::move(spawned).value();
    watch();
    int status = 0;
    while (::waitpid(srun_.pid, &status, 0) < 0 && errno == EINTR) {
    }
    finish(status);
    return std::move(outcome_);
  }

 private:
  std::vector<std::string> arguments() const {
    const contract::LaunchPlan& plan = *request_.plan;
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
        "--overlap",  // a step that a lost node keeps from ending must not hold the next one up
        fmt::format("--nodes={}", plan.nodes),
        fmt::format("--nodelist={}", fmt::join(request_.nodes, ",")),
        fmt::format("--ntasks={}", plan.world_size()),
        fmt::format("--ntasks-per-node={}", plan.ranks_per_node),
        fmt::format("--cpus-per-task={}", plan.cpus_per_rank),
        "--chdir=" + plan.working_directory,
        plan.rank_program};
    argv.insert(argv.end(), request_.arguments.begin(), request_.arguments.end());
    return argv;
  }

  std::map<std::string, std::string> environment() const {
    std::map<std::string, std::string> variables = {
        {"SHARDRUN_RUN_DIR", request_.plan->run_directory},
        {"SHARDRUN_ATTEMPT", std::to_string(request_.attempt)},
        {"SHARDRUN_MASTER_ADDR", request_.master_addr},
        {"SHARDRUN_MASTER_PORT", std::to_string(request_.master_port)},
        {"SHARDRUN_LAUNCH_TIME", fmt::format("{:.6f}", request_.launch_time)}};
    // In a job that was submitted with --shardrun: supervisors are no tasks of a plain srun.
    if (std::getenv(contract::kSlurmJobSpecVariable) != nullptr)
      variables[contract::kSlurmJobSpecVariable] = "";
    return variables;
  }

  // Until srun has ended and its streams are drained.
  void watch() {
    bool out_open = true, err_open = true, ended = false;
    while (!ended || out_open || err_open) {
      pollfd polled[5] = {{ended ? -1 : srun_.pidfd.get(), POLLIN, 0},
                          {out_open ? srun_.out.get() : -1, POLLIN, 0},
                          {err_open ? srun_.err.get() : -1, POLLIN, 0},
                          {ended ? -1 : request_.stop_fd, POLLIN, 0},
                          {ended || alarmed_ ? -1 : request_.alarm_fd, POLLIN, 0}};
      const int got = ::poll(polled, 5, ended ? 200 : milliseconds_to_kill());
      if (got < 0 && errno != EINTR) break;
      // A grandchild of srun's that keeps a stream open must not keep us.
      if (got == 0 && ended) break;
      if (polled[1].revents != 0) out_open = forward(srun_.out.get(), out_, STDOUT_FILENO);
      if (polled[2].revents != 0) err_open = forward(srun_.err.get(), err_, STDERR_FILENO);
      if (polled[3].revents != 0) on_stop();
      if (polled[4].revents != 0) on_alarm();
      if (polled[0].revents != 0) ended = true;
      if (kill_at_ && Clock::now() >= *kill_at_) kill_step();
    }
  }

  int milliseconds_to_kill() const {
    if (!kill_at_) return -1;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(*kill_at_ - Clock::now()).count();
    return static_cast<int>(std::clamp<int64_t>(left + 1, 0, 60000));
  }

  // Passes whole lines on and reads those that tell of ranks; false at the end of the stream.
  bool forward(int fd, std::string& pending, int to) {
    std::array<char, 16384> chunk;
    const ssize_t got = ::read(fd, chunk.data(), chunk.size());
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) return true;
    if (got > 0) pending.append(chunk.data(), static_cast<size_t>(got));
    const size_t whole = got > 0 ? pending.rfind('\n') + 1 : pending.size();
    const std::string text = pending.substr(0, whole);
    pending.erase(0, whole);
    (void)base::write_all(to, text, "standard output");  // nobody may be listening
    for (const std::string& line : lines_of(text)) on_line(line);
    return got > 0;
  }

  void on_line(const std::string& line) {
    if (words_.size() < kLongestWords && line.rfind("srun: ", 0) == 0)
      words_ += (words_.empty() ? "" : "; ") + line;
    const auto message = parse_srun_line(line, request_.plan->world_size());
    if (!message) return;
    if (message->step_aborted && !aborted_) {
      aborted_ = true;
      schedule_kill(request_.kill_grace);
    }
    for (contract::RankExit exit : message->exits) {
      exit.ended = unix_now();
      exit.stopped_on_request = aborted_ || outcome_.stop_signal.has_value();
      if (exits_.emplace(exit.global_rank, exit).second && !aborted_) schedule_kill(request_.kill_grace);
    }
  }

  void schedule_kill(std::chrono::milliseconds in) {
    const auto when = Clock::now() + in;
    if (!kill_at_ || when < *kill_at_) kill_at_ = when;
  }

  void on_stop() {
    signalfd_siginfo info{};
    if (::read(request_.stop_fd, &info, sizeof(info)) != static_cast<ssize_t>(sizeof(info))) return;
    if (outcome_.stop_signal) {
      kill_at_ = Clock::now();
      return;
    }
    outcome_.stop_signal = static_cast<int>(info.ssi_signo);
    signal_step("TERM");
    schedule_kill(request_.spec->fault_tolerance.stop_grace);
  }

  // The watch has told the supervisors to kill their programs. What does not hear it is Slurm's to kill, and what
  // Slurm cannot reach is not waited for.
  void on_alarm() {
    alarmed_ = aborted_ = true;
    schedule_kill(request_.kill_grace);
  }

  // Slurm knows the step by number; we know it by the name that we gave it.
  void signal_step(const char* signal) {
    if (step_.empty()) find_step();
    if (step_.empty()) {
      ::kill(srun_.pid, SIGTERM);  // not started yet: srun gives up
      return;
    }
    const std::vector<std::string> argv = {"scancel", fmt::format("--signal={}", signal), step_};
    if (auto sent = base::run_command(argv, "", command_limit()); !sent) {
      fmt::print(stderr, "shardrun: {}\n", sent.error().to_string());
    }
  }

  // slurmctld may be as dead as the node.
  std::chrono::milliseconds command_limit() const {
    return std::chrono::seconds(alarmed_ ? 1 : kills_ > 0 ? 5 : 30);
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

  void kill_step() {
    kill_at_.reset();
    if (++kills_ == 1) {
      signal_step("KILL");
      schedule_kill(
          std::chrono::seconds(alarmed_ ? 1 : 10));  // srun itself is stuck: it goes, and Slurm ends its step
    } else {
      ::kill(srun_.pid, SIGKILL);
    }
  }

  void finish(int status) {
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) note_good_ends();
    for (auto& [rank, exit] : exits_) outcome_.exits.push_back(exit);
    const bool failed = !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    if (failed && exits_.empty() && !outcome_.stop_signal && !alarmed_) {
      outcome_.scheduler_fault = words_.empty() ? fmt::format("srun ended with status {}", status) : words_;
    }
  }

  // srun ends with 0 only when all ranks did: known even where a full disk took no exit file.
  void note_good_ends() {
    for (int rank = 0; rank < request_.plan->world_size(); ++rank) {
      contract::RankExit exit;
      exit.global_rank = rank;
      exit.node = request_.nodes.at(static_cast<size_t>(rank / request_.plan->ranks_per_node));
      exit.ended = unix_now();
      exit.exit_code = 0;
      exits_.emplace(rank, exit);
    }
  }

  const StepRequest& request_;
  std::string name_, step_;
  base::SpawnedCommand srun_;
  std::string out_, err_, words_;
  std::map<int, contract::RankExit> exits_;
  bool aborted_ = false, alarmed_ = false;
  int kills_ = 0;
  std::optional<Clock::time_point> kill_at_;
  StepOutcome outcome_;
};

class SlurmScheduler : public Scheduler {
 public:
  const char* name() const override { return "slurm"; }

  Result<std::vector<std::string>> nodes(const contract::LaunchPlan& plan) override {
    const char* list = std::getenv("SLURM_JOB_NODELIST");
    if (list == nullptr) {
      return Error(Code::kRefused,
                   "SLURM_JOB_NODELIST is not set: this is no Slurm allocation; use `shardrun submit`");
    }
    auto hosts = base::run_command({"scontrol", "show", "hostnames", list});
    if (!hosts) return std::move(hosts).error();
    std::vector<std::string> names = lines_of(hosts->out);
    if (names.size() < static_cast<size_t>(plan.nodes)) {
      return Error(Code::kRefused,
                   fmt::format("the job needs {} nodes and this allocation has {} ({}); ask for more, or "
                               "write --set resources.nodes={}",
                               plan.nodes, names.size(), list, names.size()));
    }
    return names;
  }

  Result<StepOutcome> run(const StepRequest& request) override { return Step(request).run(); }
};

}  // namespace

std::unique_ptr<Scheduler> make_slurm_scheduler() {
  return std::make_unique<SlurmScheduler>();
}

}  // namespace shardrun::launcher
