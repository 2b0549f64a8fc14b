#include "launcher/gate/rules.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/submit/environment_lint.h"
#include "launcher/view/progress.h"
#include "runtime/base/median.h"
#include "runtime/contract/exit_code.h"

namespace shardrun::launcher {
namespace {

using record::ClockOffset;
using record::ExcludedNode;
using record::NodeFacts;

// Returns the fault that a node reports about itself.
std::optional<ExcludedNode> fault_of(const NodeFacts& node, int gpus_per_node) {
  if (!node.provider_error.empty()) return ExcludedNode{node.node, "provider", node.provider_error};
  if (!node.disk_error.empty())
    return ExcludedNode{node.node, "disk",
                        node.disk_error + "; correct [checkpoint] directory, or mount it there"};
  if (node.free_bytes < node.needed_bytes && !node.checkpoint_folder.empty()) {
    return ExcludedNode{
        node.node, "disk",
        fmt::format(
            "{} has {} ({} bytes) free, and the checkpoints to come need {} ({} bytes); make room, or "
            "lower [checkpoint] keep, or name another directory",
            node.checkpoint_folder, bytes_text(node.free_bytes), node.free_bytes,
            bytes_text(node.needed_bytes), node.needed_bytes)};
  }
  if (gpus_per_node == 0) return std::nullopt;
  if (!node.gpu_error.empty())
    return ExcludedNode{node.node, "gpu", "its GPUs are not known: " + node.gpu_error};
  if (node.gpus.size() < static_cast<size_t>(gpus_per_node)) {
    return ExcludedNode{node.node, "gpu",
                        fmt::format("it has {} of {} GPUs", node.gpus.size(), gpus_per_node)};
  }
  for (const record::GpuFacts& gpu : node.gpus) {
    if (gpu.faults.empty()) continue;
    return ExcludedNode{node.node, "gpu",
                        fmt::format("GPU {} ({}): {}", gpu.index, gpu.name, fmt::join(gpu.faults, "; "))};
  }
  return std::nullopt;
}

// Returns the nodes that could not even say what is wrong. When one does not see the run directory, Slurm ends the
// others before they may have said anything.
std::vector<ExcludedNode> find_speechless(const GateFacts& facts) {
  std::vector<ExcludedNode> unseen, silent;
  std::set<std::string> refused;
  for (const record::RankExit& exit : facts.exits) {
    if (exit.exit_code == contract::kExitRefused) refused.insert(exit.node);
  }
  for (const std::string& node : facts.nodes) {
    if (refused.count(node) != 0) {
      unseen.push_back({node, "run_directory", facts.run.unseen_by(node)});
    } else if (facts.found.count(node) == 0) {
      const bool named = facts.scheduler_words.find(node) != std::string::npos;
      silent.push_back({node, "silent",
                        "it left no account of its preflight" + (named ? ": " + facts.scheduler_words : "")});
    }
  }
  return unseen.empty() ? silent : unseen;
}

// Returns the node that more than half of those that could not measure blame.
std::optional<ExcludedNode> find_blamed(const GateFacts& facts) {
  std::map<std::string, int> votes;
  std::string words;
  int voters = 0;
  for (const auto& [name, node] : facts.found) {
    if (node.network_error.empty()) continue;
    ++voters;
    words = node.network_error;
    std::set<std::string> blamed;
    for (const int rank : node.network_ranks) {
      const auto index = static_cast<size_t>(rank / facts.ranks_per_node);
      if (rank >= 0 && index < facts.nodes.size()) blamed.insert(facts.nodes[index]);
    }
    if (blamed.size() == 1) ++votes[*blamed.begin()];
  }
  for (const auto& [name, count] : votes) {
    if (2 * count > voters) return ExcludedNode{name, "network", "the others cannot work with it: " + words};
  }
  return std::nullopt;
}

void judge_bandwidth(const GateFacts& facts, GateJudgement& judgement) {
  const record::Measurement& measured = *facts.measured;
  const std::optional<double> usual = facts.usual_bytes_per_second;
  const bool slow = usual && measured.bytes_per_second < record::kSlowShare * *usual;
  if (usual && !slow) return;
  const std::vector<record::NodeBandwidth> nodes = record::node_bandwidths(measured.pairs);
  const double median = record::median_bandwidth(nodes);
  const std::string all =
      fmt::format("the all-reduce over all ranks has {}{}", rate_text(measured.bytes_per_second),
                  usual ? ", usually " + rate_text(*usual) : "");
  bool found = false;
  for (const record::NodeBandwidth& node : nodes) {
    if (node.bytes_per_second >= (slow ? record::kSlowShare : kBrokenShare) * median) continue;
    found = true;
    judgement.bad.push_back(
        {node.node, "network",
         fmt::format("its network is slow: {} with its best neighbour, the median node has {}; {}",
                     rate_text(node.bytes_per_second), rate_text(median), all)});
  }
  if (slow && !found) judgement.warnings.push_back(all + ", and no node stands out");
}

void judge_clocks(const std::vector<ClockOffset>& clocks, GateJudgement& judgement) {
  // With two nodes nothing says which of them is right: the first one counts.
  std::vector<double> middles;
  for (const ClockOffset& clock : clocks) middles.push_back((clock.low + clock.high) / 2);
  const double right = clocks.size() > 2 ? base::lower_median(middles) : 0.0;
  for (const ClockOffset& clock : clocks) {
    const double ahead = clock.low - right, behind = right - clock.high;
    if (std::max(ahead, behind) <= kClockLimitSeconds) continue;
    judgement.warnings.push_back(
        fmt::format("the clock of node {} is at least {:.1f} s {} the others': times in logs will be "
                    "out of order; start its chronyd or ntpd",
                    clock.node, std::max(ahead, behind), ahead > behind ? "ahead of" : "behind"));
  }
}

void judge_variables(const GateFacts& facts, GateJudgement& judgement) {
  std::map<std::string, std::vector<std::string>> nodes_of;
  for (const std::string& name : facts.nodes) {
    const auto node = facts.found.find(name);
    if (node == facts.found.end()) continue;
    for (const VariableFinding& finding : lint_environment(node->second.variables)) {
      if (finding.kind != VariableFinding::Kind::kHarmful) continue;
      nodes_of[fmt::format("{}={} is harmful: {}", finding.name, finding.value, finding.reason)].push_back(
          name);
    }
  }
  for (const auto& [words, nodes] : nodes_of) {
    const bool everywhere = nodes.size() == facts.nodes.size();
    judgement.warnings.push_back(everywhere ? words
                                            : fmt::format("{} (on {})", words, fmt::join(nodes, " ")));
  }
}

}  // namespace

GateJudgement judge_nodes(const GateFacts& facts) {
  GateJudgement judgement;
  judgement.bad = find_speechless(facts);
  for (const std::string& name : facts.nodes) {
    const auto node = facts.found.find(name);
    if (node == facts.found.end()) continue;
    if (auto fault = fault_of(node->second, facts.gpus_per_node)) judgement.bad.push_back(std::move(*fault));
  }
  if (facts.measured) {
    judge_bandwidth(facts, judgement);
    judge_clocks(facts.measured->clocks, judgement);
  } else if (judgement.bad.empty()) {
    if (auto blamed = find_blamed(facts)) judgement.bad.push_back(std::move(*blamed));
  }
  judge_variables(facts, judgement);
  std::set<std::string> seen;
  std::vector<ExcludedNode> once;
  for (const std::string& name : facts.nodes) {
    for (ExcludedNode& node : judgement.bad) {
      if (node.node == name && seen.insert(name).second) once.push_back(std::move(node));
    }
  }
  judgement.bad = std::move(once);
  return judgement;
}

bool is_usual(const GateFacts& facts, const GateJudgement& judgement) {
  if (!facts.measured || facts.measured->bytes_per_second <= 0.0 || !judgement.bad.empty()) return false;
  const std::optional<double> usual = facts.usual_bytes_per_second;
  return !usual || facts.measured->bytes_per_second >= record::kSlowShare * *usual;
}

}  // namespace shardrun::launcher
