#include "launcher/agent/restart.h"

#include <algorithm>

#include <fmt/format.h>

#include "runtime/contract/exit_code.h"

namespace shardrun::launcher {
namespace {

using contract::RunStatus;

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

int restarts_without_progress(const std::vector<std::optional<int64_t>>& checkpoints) {
  int64_t newest = -1;
  int without = -1;  // the first attempt is no restart
  for (const auto& step : checkpoints) {
    const bool progress = step && *step > newest;
    without = progress ? 0 : without + 1;
    if (progress) newest = *step;
  }
  return std::max(0, without);
}

Decision decide(const RestartInput& input, const contract::FaultToleranceSpec& settings) {
  if (input.status == RunStatus::kPreempted) {
    return {settings.requeue && input.can_requeue ? Next::kRequeue : Next::kStop, ""};
  }
  const bool another_try_is_useless = input.exit_code == contract::kExitDoNotRequeue ||
                                      input.exit_code == contract::kExitBadInput ||
                                      input.exit_code == contract::kExitRefused;
  if (input.status != RunStatus::kFailed || input.stop_requested || another_try_is_useless) return {};
  const bool may_restart = settings.max_restarts > input.restarts_here;
  const bool may_requeue =
      settings.requeue && input.can_requeue &&
      (input.exit_code == contract::kExitInfrastructure || (may_restart && !input.enough_nodes));
  if (!may_restart && !may_requeue) return {};
  if (input.out_of_memory) {
    return {Next::kStop,
            "not started again: it would need as much memory again; see [memory] and shardrun plan"};
  }
  const int hopeless = restarts_without_progress(input.checkpoints);
  if (hopeless >= kHopelessRestarts) {
    return {Next::kStop,
            fmt::format("not started again: {} restarts in a row wrote no newer checkpoint", hopeless)};
  }
  if (may_restart && input.enough_nodes) return {Next::kRestart, ""};
  if (may_requeue) return {Next::kRequeue, ""};
  return {Next::kStop,
          "not started again: too few nodes are left in this allocation; [fault_tolerance] spares adds "
          "some, requeue asks Slurm for others"};
}

std::vector<std::string> choose_nodes(const std::vector<std::string>& all,
                                      const std::vector<std::string>& lost,
                                      const std::vector<std::string>& suspects, size_t wanted) {
  std::vector<std::string> good, doubtful, chosen;
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
