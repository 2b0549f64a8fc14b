// Which evaluation was the best, and how many since then were no better.
//
// Thread rule: pure function.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>

#include "runtime/trainer/checkpoint/manifest.h"

namespace shardrun::train {

// Returns what is known after the evaluation of `step`, whose loss is `loss`: it is the best where it is lower than the one
// before. A loss that is no number is never the best; nullopt comes of it where there is nothing to compare with.
inline std::optional<checkpoint::BestLoss> after_evaluation(std::optional<checkpoint::BestLoss> before,
                                                            int64_t step, double loss) {
  if (std::isfinite(loss) && (!before || loss < before->loss))
    return checkpoint::BestLoss{.step = step, .loss = loss, .evaluated_step = step};
  if (!before) return before;
  before->evaluated_step = step;
  ++before->evaluations_since;
  return before;
}

}  // namespace shardrun::train
