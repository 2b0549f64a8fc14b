// What the watch of a simulated conductor has found, and how one waits for ranks that another has started.
#pragma once

#include <functional>
#include <optional>

#include "launcher/schedule/scheduler.h"
#include "launcher/watch/watch.h"

namespace shardrun::simulation {

// Is asked by the watch of the conductor that runs.
extern std::function<std::optional<launcher::Watch::Raised>()> raised_alarm;
// Waits for the ranks that a conductor has taken over.
extern std::function<launcher::StepOutcome(const launcher::StepRequest&)> taken_over;

}  // namespace shardrun::simulation
