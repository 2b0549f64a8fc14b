#include "launcher/agent/muster.h"

#include <algorithm>

namespace shardrun::launcher {
namespace {

using base::Result;
using Names = std::vector<std::string>;

bool contains(const Names& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Names joined(Names left, const Names& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

// Makes the muster with all nodes, or with as many fewer as can be used.
Result<Muster> muster_without(const Names& never, const spec::JobSpec& spec,
                              const record::LaunchPlan& original, const Names& all, const Names& suspects,
                              const PlanCheck& check) {
  const size_t full = std::min(all.size(), static_cast<size_t>(original.nodes));
  if (Names nodes = choose_nodes(all, never, suspects, full); nodes.size() == full)
    return Muster{original, std::move(nodes)};
  const auto left =
      std::count_if(all.begin(), all.end(), [&](const std::string& node) { return !contains(never, node); });
  ASSIGN_OR_RETURN(auto fewer, plan_on_fewer(spec, original, static_cast<int>(left), check));
  return Muster{fewer, choose_nodes(all, never, suspects, fewer.nodes)};
}

}  // namespace

void note_bad_nodes(const record::Attempt& attempt, BadNodes& bad) {
  if (attempt.preflight) {
    for (const record::ExcludedNode& node : attempt.preflight->excluded) bad.lost.push_back(node.node);
  }
  if (!attempt.first_cause || attempt.first_cause->node.empty()) return;
  const std::string& kind = attempt.first_cause->kind;
  const std::string& node = attempt.first_cause->node;
  if (kind == "node_lost") bad.lost.push_back(node);
  bad.lost.insert(bad.lost.end(), attempt.also_lost.begin(), attempt.also_lost.end());
  const bool again = kind == "signal" && contains(bad.suspects, node);
  if (kind == "hang" || again) bad.hung.push_back(node);
  if (kind == "signal") bad.suspects.push_back(node);
}

Names nodes_to_avoid(const std::vector<record::Attempt>& attempts) {
  Names avoid;
  for (const record::Attempt& attempt : attempts) {
    BadNodes bad;
    note_bad_nodes(attempt, bad);
    for (const std::string& node : joined(bad.lost, bad.hung)) {
      avoid.erase(std::remove(avoid.begin(), avoid.end(), node), avoid.end());
      avoid.push_back(node);
    }
  }
  return avoid;
}

Result<Muster> muster(const spec::JobSpec& spec, const record::LaunchPlan& original, const Names& all,
                      const BadNodes& bad, const PlanCheck& check) {
  auto best = muster_without(joined(bad.lost, bad.hung), spec, original, all, bad.suspects, check);
  if (best || bad.hung.empty()) return best;
  auto with_hung = muster_without(bad.lost, spec, original, all, joined(bad.suspects, bad.hung), check);
  return with_hung ? with_hung : best;
}

Names choose_nodes(const Names& all, const Names& lost, const Names& suspects, size_t wanted) {
  Names good, doubtful, chosen;
  for (const std::string& node : all) {
    if (!contains(lost, node)) (contains(suspects, node) ? doubtful : good).push_back(node);
  }
  while (good.size() < wanted && !doubtful.empty()) {
    good.push_back(doubtful.front());
    doubtful.erase(doubtful.begin());
  }
  if (good.size() < wanted) return {};
  good.resize(wanted);
  for (const std::string& node : all) {
    if (contains(good, node)) chosen.push_back(node);
  }
  return chosen;
}

}  // namespace shardrun::launcher
