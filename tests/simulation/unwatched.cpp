// A watch without sockets and threads, in the place of launcher/watch/watch.cpp: it raises the alarm that the simulation wants;
// and the wait for ranks of a dead conductor, in the place of launcher/agent/attached_ranks.cpp.
#include "tests/simulation/unwatched.h"

#include <utility>

#include "launcher/agent/attached_ranks.h"
#include "launcher/watch/watch.h"

namespace shardrun::simulation {
std::function<std::optional<launcher::Watch::Raised>()> raised_alarm;
std::function<launcher::StepOutcome(const launcher::StepRequest&)> taken_over;
}  // namespace shardrun::simulation

namespace shardrun::launcher {

Watch::Watch(WatchOptions options, base::UniqueFd listener, base::UniqueFd alarm_event,
             base::UniqueFd wake_event, base::UniqueFd news)
    : options_(std::move(options)),
      listener_(std::move(listener)),
      alarm_event_(std::move(alarm_event)),
      wake_event_(std::move(wake_event)),
      news_(std::move(news)),
      rules_(options_.policy, {}) {}

Watch::~Watch() = default;

base::Result<std::unique_ptr<Watch>> Watch::start(WatchOptions options) {
  RETURN_IF_ERROR(base::write_file_atomically(options.place_path, "{}\n", 0600, base::Durability::kProcess));
  return std::unique_ptr<Watch>(new Watch(std::move(options), {}, {}, {}, {}));
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

StepOutcome wait_for_ranks(Watch&, const StepRequest& step, const record::RunDir&) {
  return simulation::taken_over(step);
}

double return_seconds(const spec::FaultToleranceSpec&) {
  return 0.0;
}

void Watch::order_signal(int) {}
void Watch::order_kill(const std::string&) {}
void Watch::stop() {}

}  // namespace shardrun::launcher
