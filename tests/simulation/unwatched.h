// What the watch of a simulated conductor has found.
#pragma once

#include <functional>
#include <optional>

#include "launcher/watch/watch.h"

namespace shardrun::simulation {

// Is asked by the watch of the conductor that runs.
extern std::function<std::optional<launcher::Watch::Raised>()> raised_alarm;

}  // namespace shardrun::simulation
