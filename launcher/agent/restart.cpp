#include "launcher/agent/restart.h"

#include <algorithm>

#include <fmt/format.h>

#include "runtime/contract/exit_code.h"

namespace shardrun::launcher {

using record::RunStatus;

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

namespace {

std::chrono::seconds pause_behind(int scheduler_faults) {
  constexpr int kFirst = 5, kLongest = 60;
  int seconds = scheduler_faults > 0 ? kFirst : 0;
  for (int more = 1; more < scheduler_faults && seconds < kLongest; ++more) seconds *= 2;
  return std::chrono::seconds(std::min(seconds, kLongest));
}

}  // namespace

Decision decide(const RestartInput& input, const spec::FaultToleranceSpec& settings) {
  if (input.status == RunStatus::kPreempted) {
    return {settings.requeue && input.can_requeue ? Next::kRequeue : Next::kStop, ""};
  }
  const bool another_try_is_useless = input.exit_code == contract::kExitDoNotRequeue ||
                                      input.exit_code == contract::kExitBadInput ||
                                      input.exit_code == contract::kExitRefused;
  if (input.status != RunStatus::kFailed || input.stop_requested || another_try_is_useless) return {};
  const bool enough_nodes = input.too_few.empty();
  const bool may_restart = settings.max_restarts > input.restarts_here;
  const bool may_requeue =
      settings.requeue && input.can_requeue &&
      (input.exit_code == contract::kExitInfrastructure || (may_restart && !enough_nodes));
  if (!may_restart && !may_requeue) return {Next::kStop, settings.min_nodes > 0 ? input.too_few : ""};
  if (input.out_of_memory) {
    return {Next::kStop,
            "not started again: it would need as much memory again; see [memory] and shardrun plan"};
  }
  const int hopeless = restarts_without_progress(input.checkpoints);
  if (hopeless >= kHopelessRestarts) {
    return {Next::kStop,
            fmt::format("not started again: {} restarts in a row wrote no newer checkpoint", hopeless)};
  }
  if (may_restart && enough_nodes) return {Next::kRestart, "", pause_behind(input.scheduler_faults)};
  if (may_requeue) return {Next::kRequeue, input.too_few};
  return {Next::kStop,
          fmt::format("not started again: {}; [fault_tolerance] spares adds nodes, min_nodes lets "
                      "the job go on with fewer, requeue asks Slurm for others",
                      input.too_few)};
}

}  // namespace shardrun::launcher
