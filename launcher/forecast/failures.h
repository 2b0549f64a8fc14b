// What failures cost a long run, and how often it should save its state against them.
//
// Sources: Young, "A first order approximation to the optimum checkpoint interval" (1974); Daly, "A higher order estimate of
// the optimum checkpoint interval" (2006); mean time between failures from "The Llama 3 Herd of Models" (arXiv 2407.21783).
// Thread rule: pure functions.
#pragma once

#include <cstdint>

namespace shardrun::launcher {

struct Saving {
  int64_t every_steps = 1;       // the interval that loses least
  double held_up_seconds = 0.0;  // by one save
  double hours_between_failures = 0.0;
  double lost_share =
      0.0;  // of the time: saving, and steps that a failure takes back; without the time to start again
};

// Returns the best interval between checkpoints, of a run on `nodes` whose save holds up the step for so long.
Saving best_saving(int64_t nodes, double step_seconds, double held_up_seconds);

}  // namespace shardrun::launcher
