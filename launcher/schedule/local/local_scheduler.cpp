#include "launcher/schedule/local/local_scheduler.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <set>

#include <fmt/format.h>

#include "launcher/schedule/local/pmix_server.h"
#include "launcher/schedule/local/spawn.h"
#include "launcher/schedule/local/temporary_directory.h"
#include "launcher/schedule/step_command.h"
#include "launcher/schedule/stop_words.h"
#include "runtime/base/allowance.h"
#include "runtime/base/descendants.h"
#include "runtime/base/io.h"
#include "runtime/base/unix_time.h"
#include "runtime/contract/exit_code.h"
#include "runtime/contract/rank_env.h"
#include "runtime/contract/sealed_lines.h"

extern char** environ;

namespace shardrun::launcher {
namespace {

using base::Result;
using record::RankExit;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

// How long a supervisor has to file its program's last words after it was told to kill the program.
constexpr milliseconds kLastWordsTime{350};
// How long a killed supervisor may take to disappear before we say that it hangs.
constexpr milliseconds kHangTime{5000};
// How often orphans of the ranks are looked for; they wait as zombies until then.
constexpr milliseconds kOrphanTime{5000};

// The variables of one rank; later ones win over earlier ones.
class Environment {
 public:
  Environment() {
    for (char** variable = environ; *variable != nullptr; ++variable) {
      if (!belongs_to_outer_launcher(*variable)) set(*variable);
    }
  }
  void set(std::string_view assignment) {
    const size_t equals = assignment.find('=');
    if (equals == std::string_view::npos) return;
    values_[std::string(assignment.substr(0, equals))] = assignment.substr(equals + 1);
  }
  void set(const std::string& name, std::string value) { values_[name] = std::move(value); }
  void set_default(const std::string& name, std::string value) { values_.emplace(name, std::move(value)); }
  std::vector<std::string> list() const {
    std::vector<std::string> assignments;
    for (const auto& [name, value] : values_) assignments.push_back(fmt::format("{}={}", name, value));
    return assignments;
  }

 private:
  // What srun or mpirun told this process about itself must not reach ranks that have another launcher: this one.
  static bool belongs_to_outer_launcher(std::string_view variable) {
    constexpr std::string_view kPrefixes[] = {"PMIX_NAMESPACE=", "PMIX_RANK=",       "PMIX_SERVER_",
                                              "PMIX_ID=",        "OMPI_COMM_WORLD_", "OMPI_MCA_orte_",
                                              "OMPI_MCA_ess=",   "OMPI_MCA_ess_",    "SHARDRUN_"};
    return std::any_of(std::begin(kPrefixes), std::end(kPrefixes),
                       [&](std::string_view prefix) { return variable.starts_with(prefix); });
  }

  std::map<std::string, std::string> values_;
};

Environment job_environment(const StepRequest& request, int world_size) {
  Environment environment;
  for (const auto& [name, value] : step_environment(request, "shardrun")) environment.set(name, value);
  if (request.spec->fault_tolerance.conductor_timeout.count() == 0)
    environment.set("SHARDRUN_LAUNCHER_PID", std::to_string(::getpid()));
  environment.set("SHARDRUN_NODE_INDEX", "0");
  environment.set("SHARDRUN_NODE_COUNT", "1");
  environment.set("SHARDRUN_WORLD_SIZE", std::to_string(world_size));
  environment.set("SHARDRUN_LOCAL_WORLD_SIZE", std::to_string(world_size));
  environment.set("SHARDRUN_NODE_NAME", request.nodes.at(0));
  // Open MPI 4 believes that it was started through PMIx only under launchers that it knows by name, and would
  // otherwise start as a singleton of size 1. This is the variable of the one whose rules are ours: PMIx, ranks
  // bound from outside. Open MPI 5 asks PMIx alone.
  environment.set_default("JSM_JSRUN_PORT", "shardrun");
  // All ranks share this machine's memory, which ob1 uses; left to itself Open MPI ends up there too, after it has
  // asked every network library on the machine, which takes longer than all the rest of a start.
  environment.set_default("OMPI_MCA_pml", "ob1");
  // ob1 opens TCP beside shared memory as its second way to each rank, and Open MPI 5 prints an error in every
  // rank where it finds no route for that (docs/decisions/0040-one-source-for-debian-12-to-forky.md).
  environment.set_default("OMPI_MCA_btl", "^tcp");
  // There are more ranks than CPUs: a rank that waits must let the others run.
  if (world_size > base::usable_cpus()) {
    environment.set_default("OMPI_MCA_mpi_yield_when_idle", "1");
  }
  return environment;
}

// Carries the ranks of one attempt from their start to their end.
class LocalStep {
 public:
  LocalStep(const StepRequest& request, PmixServer& server, PmixJob job, base::DescendantReaper& reaper)
      : request_(request), server_(server), job_(std::move(job)), reaper_(reaper) {}

  Result<StepOutcome> run() {
    if (auto started = start_ranks(); !started) {
      reaper_.kill_all(std::chrono::seconds(2));
      return std::move(started).error();
    }
    while (!ranks_.empty() && phase_ != Phase::kHanging) {
      poll_once();
      advance();
    }
    if (!reaper_.kill_all(std::chrono::seconds(1))) {
      outcome_.scheduler_fault = "a process of the job cannot be killed: it hangs in a system call";
    }
    return std::move(outcome_);
  }

 private:
  struct Rank {
    int global_rank = 0;
    Process process;
  };
  enum class Phase { kRunning, kStopping, kTerminating, kKilling, kKilled, kHanging };

  Result<void> start_ranks() {
    Environment environment = job_environment(request_, job_.world_size);
    std::vector<std::string> argv = {request_.plan->rank_program};
    argv.insert(argv.end(), request_.arguments.begin(), request_.arguments.end());
    for (int rank = 0; rank < job_.world_size; ++rank) {
      ASSIGN_OR_RETURN(auto pmix, server_.client_environment(job_, rank));
      for (const std::string& variable : pmix) environment.set(variable);
      environment.set("SHARDRUN_GLOBAL_RANK", std::to_string(rank));
      environment.set("SHARDRUN_LOCAL_RANK", std::to_string(rank));
      ASSIGN_OR_RETURN(auto process, start_process(argv, environment.list()));
      keep_.insert(process.pid);
      ranks_.push_back({rank, std::move(process)});
    }
    return {};
  }

  void poll_once() {
    std::vector<pollfd> fds;
    fds.push_back({request_.stop_fd, POLLIN, 0});
    fds.push_back({server_.abort_fd(), POLLIN, 0});
    fds.push_back({alarmed_ ? -1 : request_.alarm_fd, POLLIN, 0});
    for (const Rank& rank : ranks_) fds.push_back({rank.process.pidfd.get(), POLLIN, 0});
    const int ready = ::poll(fds.data(), fds.size(), timeout_ms());
    reaper_.collect_orphans(keep_);
    if (ready <= 0) return;
    if (fds[0].revents != 0) on_stop_request();
    if (fds[1].revents != 0) on_abort();
    if (fds[2].revents != 0) on_alarm();
    for (size_t i = ranks_.size(); i-- > 0;) {
      if (fds[3 + i].revents != 0) on_rank_end(i);
    }
  }

  int timeout_ms() const {
    if (!deadline_) return static_cast<int>(kOrphanTime.count());
    const auto left = std::chrono::ceil<milliseconds>(*deadline_ - steady_clock::now());
    return static_cast<int>(std::clamp(left, milliseconds(0), kOrphanTime).count());
  }

  void on_stop_request() {
    signalfd_siginfo info{};
    if (::read(request_.stop_fd, &info, sizeof info) != sizeof info) return;
    const auto now = steady_clock::now();
    if (!outcome_.stop_signal) {
      outcome_.stop_signal = static_cast<int>(info.ssi_signo);
      stop_requested_ = now;
      tell_of_stop(request_, *outcome_.stop_signal);
      if (phase_ == Phase::kRunning) enter(Phase::kStopping);
    } else if (now - stop_requested_ >= kOneRequest && phase_ < Phase::kKilling) {
      tell_of_second_stop();
      enter(Phase::kKilling);
    }
  }

  void on_abort() {
    abort_ = server_.take_abort();
    if (abort_ && phase_ <= Phase::kStopping) enter(Phase::kTerminating);
  }

  void on_alarm() {
    alarmed_ = true;
    if (phase_ <= Phase::kStopping) enter(Phase::kTerminating);
  }

  void on_rank_end(size_t index) {
    const Rank rank = std::move(ranks_[index]);
    ranks_.erase(ranks_.begin() + static_cast<std::ptrdiff_t>(index));
    int status = 0;
    while (::waitpid(rank.process.pid, &status, 0) < 0 && errno == EINTR) {
    }
    keep_.erase(rank.process.pid);
    RankExit exit;
    exit.global_rank = rank.global_rank;
    exit.node = request_.nodes.at(0);
    exit.ended = base::unix_now();
    exit.stopped_on_request = phase_ != Phase::kRunning;
    if (WIFSIGNALED(status)) {
      exit.signal = WTERMSIG(status);
    } else {
      exit.exit_code = WEXITSTATUS(status);
    }
    if (abort_ && abort_->global_rank == rank.global_rank) {
      exit.stopped_on_request = false;
      exit.last_words = fmt::format("it called PMIx_Abort or MPI_Abort with status {}", abort_->status);
      if (exit.exit_code == 0) exit.exit_code = 1;
    }
    const bool asked = phase_ == Phase::kStopping && contract::ended_as_asked(exit);
    outcome_.exits.push_back(exit);
    if (exit.exit_code != 0 && !asked && phase_ <= Phase::kStopping) enter(Phase::kTerminating);
  }

  // Tells the remaining ranks what the phase means for them and sets when the next one begins.
  void enter(Phase phase) {
    phase_ = phase;
    const auto now = steady_clock::now();
    switch (phase) {
      case Phase::kRunning:
        break;
      case Phase::kStopping:
        signal_ranks(SIGTERM);
        deadline_ = now + request_.spec->fault_tolerance.stop_grace;
        break;
      case Phase::kTerminating:
        // A rank that called abort is ending already, with the exit code that it wants to be known for.
        signal_ranks(SIGTERM, abort_ ? abort_->global_rank : -1);
        deadline_ = now + kKillGrace;
        break;
      case Phase::kKilling:
        signal_ranks(SIGQUIT);
        deadline_ = now + kLastWordsTime;
        break;
      case Phase::kKilled:
        signal_ranks(SIGKILL);
        deadline_ = now + kHangTime;
        break;
      case Phase::kHanging:
        break;
    }
  }

  void advance() {
    if (!deadline_ || steady_clock::now() < *deadline_ || ranks_.empty()) return;
    if (phase_ == Phase::kKilled) return enter(Phase::kHanging);
    enter(phase_ == Phase::kKilling ? Phase::kKilled : Phase::kKilling);
  }

  void signal_ranks(int signal, int except = -1) {
    for (const Rank& rank : ranks_) {
      if (rank.global_rank != except) ::kill(rank.process.pid, signal);
    }
  }

  const StepRequest& request_;
  PmixServer& server_;
  PmixJob job_;
  base::DescendantReaper& reaper_;
  std::vector<Rank> ranks_;
  std::set<pid_t> keep_;  // the ranks' supervisors, which are reaped by on_rank_end
  Phase phase_ = Phase::kRunning;
  std::optional<steady_clock::time_point> deadline_;
  steady_clock::time_point stop_requested_;
  std::optional<PmixAbort> abort_;
  bool alarmed_ = false;
  StepOutcome outcome_;
};

class LocalScheduler final : public Scheduler {
 public:
  Result<std::vector<std::string>> nodes(const record::LaunchPlan&) override {
    return std::vector<std::string>{contract::host_name()};
  }

  Result<StepOutcome> run(const StepRequest& request) override {
    if (!directory_) {
      ASSIGN_OR_RETURN(auto directory, TemporaryDirectory::make());
      directory_.emplace(std::move(directory));
      ASSIGN_OR_RETURN(server_, PmixServer::start(directory_->path()));
    }
    ASSIGN_OR_RETURN(auto reaper, base::DescendantReaper::start());
    PmixJob job;
    // The name is what a process must know to join the job: PMIx's server believes the user that a client claims to be.
    ASSIGN_OR_RETURN(const auto name, contract::random_key());
    job.name_space = "shardrun." + common::to_hex(common::bytes_of(name));
    ++steps_;
    job.host_name = request.nodes.at(0);
    job.session_directory = fmt::format("{}/{}", directory_->path(), steps_);
    job.world_size = request.plan->world_size();
    RETURN_IF_ERROR(base::make_directories(job.session_directory, 0700));
    RETURN_IF_ERROR(server_->add_job(job));
    auto outcome = LocalStep(request, *server_, job, reaper).run();
    server_->remove_job(job);
    return outcome;
  }

 private:
  // It is declared first so that it is removed after the server has closed its files.
  std::optional<TemporaryDirectory> directory_;
  std::unique_ptr<PmixServer> server_;
  int steps_ = 0;
};

}  // namespace

std::unique_ptr<Scheduler> make_local_scheduler() {
  return std::make_unique<LocalScheduler>();
}

}  // namespace shardrun::launcher
