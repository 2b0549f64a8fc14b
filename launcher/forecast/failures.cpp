#include "launcher/forecast/failures.h"

#include <algorithm>
#include <cmath>

namespace shardrun::launcher {
namespace {

// 419 stops that nobody asked for in 54 days on 16,384 GPUs, eight a node.
constexpr double kNodeHours = 54.0 * 24.0 * (16384.0 / 8.0) / 419.0;

}  // namespace

Saving best_saving(int64_t nodes, double step_seconds, double held_up_seconds) {
  Saving saving;
  saving.held_up_seconds = held_up_seconds;
  saving.hours_between_failures = kNodeHours / static_cast<double>(nodes);
  const double between = saving.hours_between_failures * 3600.0;
  // Daly's interval holds while a save takes less than twice the time between failures.
  const double part = std::sqrt(held_up_seconds / (2.0 * between));
  const double interval =
      std::sqrt(2.0 * held_up_seconds * between) * (1.0 + part / 3.0 + part * part / 9.0) - held_up_seconds;
  saving.every_steps = std::max<int64_t>(1, std::llround(interval / step_seconds));
  const double work = static_cast<double>(saving.every_steps) * step_seconds;
  saving.lost_share = held_up_seconds / (work + held_up_seconds) + (work + held_up_seconds) / (2.0 * between);
  return saving;
}

}  // namespace shardrun::launcher
