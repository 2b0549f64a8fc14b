#include "launcher/schedule/mpirun/mpirun_scheduler.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include <fmt/format.h>

#include "launcher/schedule/step_command.h"
#include "runtime/base/io.h"
#include "runtime/base/text.h"

namespace shardrun::launcher {
namespace {

using base::Code;
using base::Error;
using base::Result;

constexpr const char* kLauncher = "mpirun";
constexpr std::chrono::seconds kPatience{5};  // how long mpirun may take once it was told to end
// Carries one mpirun from its start to its end.
class Step : public StepCommand {
 public:
  using StepCommand::StepCommand;

 private:
  void on_line(const std::string& line, bool is_error) override {
    if (is_error) keep_words(line);
  }

  void on_stop() override {
    const bool trainer = request().spec->program.command.empty();
    signal_command(trainer ? SIGUSR1 : SIGTERM);
    schedule_kill(trainer ? request().spec->fault_tolerance.stop_grace : kPatience);
  }

  // The watch has told the supervisors to kill their programs; supervisors that do not hear it end with
  // mpirun's connections.
  void on_alarm() override {
    signal_command(SIGTERM);
    terminated_ = true;
    schedule_kill(std::chrono::seconds(2));
  }

  // At first mpirun is told to end its ranks; the second time it is killed itself.
  void on_kill_time() override {
    signal_command(terminated_ ? SIGKILL : SIGTERM);
    terminated_ = true;
    schedule_kill(kPatience);
  }

  bool terminated_ = false;
};

// Returns mpirun's argv for one attempt.
std::vector<std::string> mpirun_command(const StepRequest& request, bool as_root) {
  const record::LaunchPlan& plan = *request.plan;
  std::string hosts;
  for (size_t i = 0; i < static_cast<size_t>(plan.nodes); ++i)
    hosts += fmt::format("{}{}:{}", i == 0 ? "" : ",", request.nodes.at(i), plan.ranks_per_node);
  std::vector<std::string> argv = {"mpirun"};
  if (as_root) argv.emplace_back("--allow-run-as-root");  // containers run as root
  argv.insert(argv.end(), {"-np", std::to_string(plan.world_size()), "--host", hosts, "--map-by",
                           fmt::format("ppr:{}:node:OVERSUBSCRIBE", plan.ranks_per_node), "--bind-to", "none",
                           "--mca", "odls_base_sigkill_timeout", "1", "-wdir", plan.working_directory});
  for (const auto& [variable, value] : step_environment(request, kLauncher))
    argv.insert(argv.end(), {"-x", variable});
  argv.push_back(plan.rank_program);
  argv.insert(argv.end(), request.arguments.begin(), request.arguments.end());
  return argv;
}

class MpirunScheduler : public Scheduler {
 public:
  Result<std::vector<std::string>> nodes(const record::LaunchPlan& plan) override {
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

  Result<StepOutcome> run(const StepRequest& request) override {
    return Step(request).run(mpirun_command(request, ::geteuid() == 0), step_environment(request, kLauncher));
  }
};

}  // namespace

std::vector<std::string> parse_host_file(std::string_view text) {
  std::vector<std::string> hosts;
  while (!text.empty()) {
    std::string_view line = base::take_line(text);
    line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
    const std::string host(line.substr(0, line.find_first_of(" \t\r#:")));
    if (!host.empty() && std::find(hosts.begin(), hosts.end(), host) == hosts.end()) hosts.push_back(host);
  }
  return hosts;
}

std::unique_ptr<Scheduler> make_mpirun_scheduler() {
  return std::make_unique<MpirunScheduler>();
}

}  // namespace shardrun::launcher
