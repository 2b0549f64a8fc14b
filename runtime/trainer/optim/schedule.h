// Learning-rate schedules. Pure.
#pragma once

#include <cstdint>

#include "runtime/spec/job_spec.h"

namespace shardrun::optim {

using spec::Schedule;

struct ScheduleOptions {
  Schedule shape = Schedule::kCosine;
  double peak = 3e-4, minimum = 0.0;
  int64_t warmup_steps = 0, steps = 1;
  int64_t decay_steps = 0;  // for kWarmupStableDecay: the last steps, in which the rate falls
};

// Returns the rate of optimizer step `step` (0 … steps-1). Warm-up rises linearly and reaches the peak in its last
// step: peak · (step+1) / warmup_steps. After it the rate falls from the peak, in its first step, towards the
// minimum, which it would reach in step `steps`: along a line, along half a cosine (Loshchilov and Hutter 2017,
// without restarts), not at all, or (warm-up, stable, decay: Hu et al. 2024) along a line in the last decay_steps
// only.
double learning_rate(const ScheduleOptions& options, int64_t step);

}  // namespace shardrun::optim
