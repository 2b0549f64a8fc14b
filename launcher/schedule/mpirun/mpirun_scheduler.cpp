#include "launcher/schedule/mpirun/mpirun_scheduler.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <map>

#include <fmt/format.h>

#include "runtime/base/command.h"

namespace shardrun::launcher {
namespace {

using base::Code;
using base::Error;
using base::Result;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kPatience{5};  // with mpirun, once it was told to end
constexpr size_t kLongestWords = 2000;        // of mpirun, kept for a verdict
constexpr const char* kVariables[] = {"SHARDRUN_RUN_DIR", "SHARDRUN_ATTEMPT", "SHARDRUN_MASTER_ADDR",
                                      "SHARDRUN_MASTER_PORT", "SHARDRUN_LAUNCH_TIME"};

std::map<std::string, std::string> environment(const StepRequest& request) {
  return {{kVariables[0], request.plan->run_directory},
          {kVariables[1], std::to_string(request.attempt)},
          {kVariables[2], request.master_addr},
          {kVariables[3], std::to_string(request.master_port)},
          {kVariables[4], fmt::format("{:.6f}", request.launch_time)}};
}

// One mpirun, from its start to its end.
class Step {
 public:
  explicit Step(const StepRequest& request) : request_(request) {}

  Result<StepOutcome> run() {
    auto spawned =
        base::spawn_command(mpirun_command(request_, ::geteuid() == 0), environment(request_), false);
    if (!spawned) return std::move(spawned).error();
    mpirun_ = std::move(spawned).value();
    watch();
    int status = 0;
    while (::waitpid(mpirun_.pid, &status, 0) < 0 && errno == EINTR) {
    }
    finish(status);
    return std::move(outcome_);
  }

 private:
  // Until mpirun has ended and its streams are drained.
  void watch() {
    bool out_open = true, err_open = true, ended = false;
    while (!ended || out_open || err_open) {
      pollfd polled[5] = {{ended ? -1 : mpirun_.pidfd.get(), POLLIN, 0},
                          {out_open ? mpirun_.out.get() : -1, POLLIN, 0},
                          {err_open ? mpirun_.err.get() : -1, POLLIN, 0},
                          {ended ? -1 : request_.stop_fd, POLLIN, 0},
                          {ended || alarmed_ ? -1 : request_.alarm_fd, POLLIN, 0}};
      const int got = ::poll(polled, 5, ended ? 200 : kill_at_ ? 100 : -1);
      if (got < 0 && errno != EINTR) break;
      if (got == 0 && ended) break;  // a grandchild keeps a stream open
      if (polled[1].revents != 0) out_open = forward(mpirun_.out.get(), STDOUT_FILENO);
      if (polled[2].revents != 0) err_open = forward(mpirun_.err.get(), STDERR_FILENO);
      if (polled[3].revents != 0) on_stop();
      if (polled[4].revents != 0) on_alarm();
      if (polled[0].revents != 0) ended = true;
      if (!ended && kill_at_ && Clock::now() >= *kill_at_) end_now();
    }
  }

  bool forward(int fd, int to) {
    std::array<char, 16384> chunk;
    const ssize_t got = ::read(fd, chunk.data(), chunk.size());
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) return true;
    if (got <= 0) return false;
    const std::string_view text(chunk.data(), static_cast<size_t>(got));
    if (to == STDERR_FILENO)
      words_.append(text.substr(0, kLongestWords - std::min(kLongestWords, words_.size())));
    (void)base::write_all(to, text, "standard output");  // nobody may be listening
    return true;
  }

  void on_stop() {
    signalfd_siginfo info{};
    if (::read(request_.stop_fd, &info, sizeof(info)) != static_cast<ssize_t>(sizeof(info))) return;
    if (outcome_.stop_signal) {
      kill_at_ = Clock::now();
      return;
    }
    outcome_.stop_signal = static_cast<int>(info.ssi_signo);
    const bool trainer = request_.spec->program.command.empty();
    ::kill(mpirun_.pid, trainer ? SIGUSR1 : SIGTERM);
    kill_at_ = Clock::now() + (trainer ? request_.spec->fault_tolerance.stop_grace : kPatience);
  }

  // The watch has told the supervisors to kill their programs; what does not hear it goes with mpirun's connections.
  void on_alarm() {
    alarmed_ = true;
    ::kill(mpirun_.pid, SIGTERM);
    terminated_ = true;
    kill_at_ = Clock::now() + std::chrono::seconds(2);
  }

  // First mpirun is told to end its ranks, then it goes itself.
  void end_now() {
    ::kill(mpirun_.pid, terminated_ ? SIGKILL : SIGTERM);
    terminated_ = true;
    kill_at_ = Clock::now() + kPatience;
  }

  void finish(int status) {
    const bool good = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (good) {
      for (int rank = 0; rank < request_.plan->world_size(); ++rank) {
        contract::RankExit exit;
        exit.global_rank = rank;
        exit.node = request_.nodes.at(static_cast<size_t>(rank / request_.plan->ranks_per_node));
        exit.ended =
            std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
        exit.exit_code = 0;
        outcome_.exits.push_back(exit);
      }
    } else if (!outcome_.stop_signal && !alarmed_) {
      std::replace(words_.begin(), words_.end(), '\n', ' ');
      outcome_.scheduler_fault = words_.empty() ? fmt::format("mpirun ended with status {}", status) : words_;
    }
  }

  const StepRequest& request_;
  base::SpawnedCommand mpirun_;
  std::string words_;
  bool alarmed_ = false, terminated_ = false;
  std::optional<Clock::time_point> kill_at_;
  StepOutcome outcome_;
};

class MpirunScheduler : public Scheduler {
 public:
  const char* name() const override { return "mpirun"; }

  Result<std::vector<std::string>> nodes(const contract::LaunchPlan& plan) override {
    std::vector<std::string> hosts = {"localhost"};
    const char* file = std::getenv("OMPI_MCA_orte_default_hostfile");
    if (file != nullptr) {
      auto text = base::read_file(file);
      if (!text) return std::move(text).error().context("reading Open MPI's host file");
      hosts = parse_host_file(*text);
    }
    if (hosts.size() < static_cast<size_t>(plan.nodes)) {
      return Error(
          Code::kRefused,
          fmt::format("the job needs {} nodes, and {} has {}; add hosts, or write --set resources.nodes={}",
                      plan.nodes, file != nullptr ? file : "no host file is set: this machine alone",
                      hosts.size(), hosts.size()));
    }
    return hosts;
  }

  Result<StepOutcome> run(const StepRequest& request) override { return Step(request).run(); }
};

}  // namespace

std::vector<std::string> parse_host_file(std::string_view text) {
  std::vector<std::string> hosts;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
    const std::string host(line.substr(0, line.find_first_of(" \t\r#:")));
    if (!host.empty() && std::find(hosts.begin(), hosts.end(), host) == hosts.end()) hosts.push_back(host);
  }
  return hosts;
}

std::vector<std::string> mpirun_command(const StepRequest& request, bool as_root) {
  const contract::LaunchPlan& plan = *request.plan;
  std::string hosts;
  for (size_t i = 0; i < static_cast<size_t>(plan.nodes); ++i)
    hosts += fmt::format("{}{}:{}", i == 0 ? "" : ",", request.nodes.at(i), plan.ranks_per_node);
  std::vector<std::string> argv = {"mpirun"};
  if (as_root) argv.emplace_back("--allow-run-as-root");  // as containers are
  argv.insert(argv.end(), {"-np", std::to_string(plan.world_size()), "--host", hosts, "--map-by",
                           fmt::format("ppr:{}:node:OVERSUBSCRIBE", plan.ranks_per_node), "--bind-to", "none",
                           "--mca", "odls_base_sigkill_timeout", "1", "-wdir", plan.working_directory});
  for (const char* variable : kVariables) argv.insert(argv.end(), {"-x", variable});
  argv.push_back(plan.rank_program);
  argv.insert(argv.end(), request.arguments.begin(), request.arguments.end());
  return argv;
}

std::unique_ptr<Scheduler> make_mpirun_scheduler() {
  return std::make_unique<MpirunScheduler>();
}

}  // namespace shardrun::launcher
