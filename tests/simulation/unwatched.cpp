// A watch without sockets and threads, in the place of launcher/watch/watch.cpp: it raises the alarm that the simulation wants.
#include "tests/simulation/unwatched.h"

#include <utility>

#include "launcher/watch/watch.h"

namespace shardrun::simulation {
std::function<std::optional<launcher::Watch::Raised>()> raised_alarm;
}

namespace shardrun::launcher {

Watch::Watch(WatchOptions options, base::UniqueFd listener, base::UniqueFd alarm_event,
             base::UniqueFd stop_event)
    : options_(std::move(options)),
      listener_(std::move(listener)),
      alarm_event_(std::move(alarm_event)),
      stop_event_(std::move(stop_event)),
      rules_(options_.policy, {}) {}

Watch::~Watch() = default;

base::Result<std::unique_ptr<Watch>> Watch::start(WatchOptions options) {
  return std::unique_ptr<Watch>(new Watch(std::move(options), {}, {}, {}));
}

std::optional<Watch::Raised> Watch::raised() const {
  return simulation::raised_alarm ? simulation::raised_alarm() : std::nullopt;
}

std::vector<Straggler> Watch::stragglers() const {
  return {};
}

Watch::Strangers Watch::strangers() const {
  return {};
}

void Watch::stop() {}

}  // namespace shardrun::launcher
