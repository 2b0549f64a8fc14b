#include "launcher/gate/gate.h"

#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include <fmt/format.h>

#include "launcher/gate/bandwidth_history.h"
#include "launcher/gate/rules.h"
#include "runtime/base/io.h"
#include "runtime/base/say.h"

namespace shardrun::launcher {
namespace {

using base::Code;
using base::Error;
using base::Result;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

Result<base::UniqueFd> alarm_in(int seconds) {
  base::UniqueFd timer(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  itimerspec when{};
  when.it_value.tv_sec = seconds;
  if (!timer || ::timerfd_settime(timer.get(), 0, &when, nullptr) != 0)
    return base::errno_error(Code::kIo, "a timer for the preflight", errno);
  return timer;
}

class Gate {
 public:
  Gate(Scheduler& scheduler, const StepRequest& step, size_t wanted)
      : scheduler_(scheduler), step_(step), wanted_(wanted) {}

  GateOutcome run() {
    const auto begin = std::chrono::steady_clock::now();
    for (int pass = 0; look(pass); ++pass) {
    }
    outcome_.note.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    for (const std::string& warning : outcome_.note.warnings) say(warning);
    for (const record::ExcludedNode& node : outcome_.note.excluded)
      say(fmt::format("node {} is left out: {}", node.node, node.reason));
    return std::move(outcome_);
  }

 private:
  static void say(const std::string& line) {
    base::say(STDERR_FILENO, fmt::format("shardrun: preflight: {}\n", line));
  }

  // Runs one step on all nodes that are left; returns true when another one should follow.
  bool look(int pass) {
    GateFacts facts;
    facts.run = record::RunDir{step_.plan->run_directory};
    facts.nodes = step_.nodes;
    facts.ranks_per_node = step_.plan->ranks_per_node;
    facts.gpus_per_node = step_.spec->resources.gpus_per_node;
    const std::string history = find_history(facts);
    if (auto taken = take_facts(pass, facts); !taken) {
      outcome_.error = taken.error();
      return false;
    }
    if (outcome_.stop_signal) return false;
    const GateJudgement judgement = judge_nodes(facts);
    outcome_.note.warnings = judgement.warnings;
    if (facts.measured && facts.measured->bytes_per_second > 0.0) {
      outcome_.note.bytes_per_second = facts.measured->bytes_per_second;
      outcome_.note.usual_bytes_per_second = facts.usual_bytes_per_second;
    }
    if (is_usual(facts, judgement) && !history.empty()) {
      if (auto kept = remember_bandwidth(history, facts.measured->bytes_per_second); !kept)
        outcome_.note.warnings.push_back("what was measured is not remembered: " + kept.error().to_string());
    }
    return exclude(facts, judgement);
  }

  // Returns where the history of such launches lies; "" where there is no place for it.
  std::string find_history(GateFacts& facts) {
    LaunchKind kind;
    kind.cluster = step_.plan->scheduler == "slurm" ? variable("SLURM_CLUSTER_NAME") : step_.nodes.front();
    kind.partition = variable("SLURM_JOB_PARTITION");
    kind.nodes = static_cast<int>(step_.nodes.size());
    kind.ranks_per_node = step_.plan->ranks_per_node;
    kind.provider = step_.spec->communication.provider;
    const auto path = history_path(kind);
    if (!path) return "";
    const auto usual = usual_bandwidth(*path);
    if (!usual) return "";
    facts.usual_bytes_per_second = *usual;
    return *path;
  }

  Result<void> take_facts(int pass, GateFacts& facts) {
    const std::string folder = facts.run.preflight(step_.attempt, pass);
    RETURN_IF_ERROR(base::make_private_directory(folder));
    ASSIGN_OR_RETURN(auto alarm, alarm_in(kGateSeconds));
    record::LaunchPlan plan = *step_.plan;
    plan.nodes = static_cast<int>(step_.nodes.size());
    StepRequest step = step_;
    step.plan = &plan;
    step.alarm_fd = alarm.get();
    step.arguments = {"preflight", folder, fmt::format("{:.0f}", facts.usual_bytes_per_second.value_or(0.0))};
    ASSIGN_OR_RETURN(auto ended, scheduler_.run(step));
    outcome_.stop_signal = ended.stop_signal;
    facts.exits = ended.exits;
    facts.scheduler_words = ended.scheduler_fault.value_or("");
    for (const std::string& node : step_.nodes) {
      const auto text = base::read_file(fmt::format("{}/{}.json", folder, node));
      if (!text) continue;
      auto found = record::parse_node_facts(*text);
      if (!found) return std::move(found).error().context("reading what node " + node + " found");
      facts.found[node] = std::move(*found);
    }
    if (const auto text = base::read_file(folder + "/measured.json")) {
      ASSIGN_OR_RETURN(facts.measured, record::parse_measurement(*text));
    }
    const bool nobody = facts.found.empty() && facts.exits.empty() && !outcome_.stop_signal;
    if (nobody && !facts.scheduler_words.empty()) return Error(Code::kIo, facts.scheduler_words);
    return {};
  }

  // One node may be broken, and so may several, but not all of them in the same way.
  bool is_the_jobs_own(const std::vector<record::ExcludedNode>& excluded) const {
    if (excluded.size() < 2 && step_.plan->scheduler != "local") return false;
    const record::ExcludedNode& first = excluded.front();
    if (first.kind == "silent" || first.kind == "network") return false;
    return std::all_of(excluded.begin(), excluded.end(), [&](const record::ExcludedNode& node) {
      return node.kind == first.kind && (node.kind != "gpu" || node.reason == first.reason);
    });
  }

  bool exclude(const GateFacts& facts, const GateJudgement& judgement) {
    std::vector<record::ExcludedNode>& excluded = outcome_.note.excluded;
    for (const record::ExcludedNode& bad : judgement.bad) {
      excluded.push_back(bad);
      step_.nodes.erase(std::find(step_.nodes.begin(), step_.nodes.end(), bad.node));
    }
    outcome_.is_everywhere = step_.nodes.empty() && is_the_jobs_own(excluded);
    if (facts.measured) return false;
    if (!judgement.bad.empty()) return step_.nodes.size() >= wanted_ && !step_.nodes.empty();
    std::string words = facts.scheduler_words;
    for (const auto& [name, node] : facts.found) {
      if (!node.network_error.empty()) words = name + ": " + node.network_error;
    }
    outcome_.error = Error(Code::kIo, "the nodes could not measure their network: " + words);
    return false;
  }

  Scheduler& scheduler_;
  StepRequest step_;
  size_t wanted_;
  GateOutcome outcome_;
};

}  // namespace

GateOutcome look_at_nodes(Scheduler& scheduler, const StepRequest& step, size_t wanted) {
  return Gate(scheduler, step, wanted).run();
}

std::string excluded_words(const record::PreflightNote& note) {
  if (note.excluded.empty()) return "";
  const record::ExcludedNode& first = note.excluded.front();
  std::string words = fmt::format("node {} failed the preflight: {}", first.node, first.reason);
  if (note.excluded.size() > 1) {
    words += "; also";
    for (size_t i = 1; i < note.excluded.size(); ++i)
      words += fmt::format("{} node {} ({})", i > 1 ? "," : "", note.excluded[i].node, note.excluded[i].kind);
  }
  return words;
}

}  // namespace shardrun::launcher
