#include "runtime/trainer/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace shardrun::optim {

double learning_rate(const ScheduleOptions& options, int64_t step) {
  if (step < options.warmup_steps) {
    return options.peak * static_cast<double>(step + 1) / static_cast<double>(options.warmup_steps);
  }
  const auto after_warmup = static_cast<double>(step - options.warmup_steps);
  const auto decay_steps = static_cast<double>(std::max<int64_t>(1, options.steps - options.warmup_steps));
  const double progress = std::min(1.0, after_warmup / decay_steps);
  const auto decayed = static_cast<double>(step - (options.steps - options.decay_steps));
  const double span = options.peak - options.minimum;
  switch (options.shape) {
    case Schedule::kConstant:
      return options.peak;
    case Schedule::kLinear:
      return options.peak - span * progress;
    case Schedule::kCosine:
      return options.minimum + span * 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
    case Schedule::kWarmupStableDecay:
      if (decayed <= 0.0) return options.peak;
      return options.peak - span * std::min(1.0, decayed / static_cast<double>(options.decay_steps));
  }
  return options.peak;
}

}  // namespace shardrun::optim
