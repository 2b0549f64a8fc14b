// SpikeRule: when a step's loss is a spike: more than `factor` times the median of the steps before it.
//
// The median is of the last 32 steps of this attempt, and there must be 8 of them. All ranks see the same losses, so they
// judge alike.
//
// Thread rule: thread-compatible.
#pragma once

#include <cstddef>
#include <vector>

#include "runtime/base/median.h"

namespace shardrun::train {

class SpikeRule {
 public:
  // 0: no loss is a spike.
  explicit SpikeRule(double factor) : factor_(factor) {}

  // Returns the median that the loss is too far above; 0 when it is no spike.
  double median_below(double loss) const {
    if (factor_ <= 0.0 || losses_.size() < kFewest) return 0.0;
    const double median = base::lower_median(losses_);
    return loss > factor_ * median ? median : 0.0;
  }
  void note(double loss) {
    if (factor_ <= 0.0) return;
    if (losses_.size() == kMost) losses_.erase(losses_.begin());
    losses_.push_back(loss);
  }

 private:
  static constexpr size_t kFewest = 8, kMost = 32;
  double factor_;
  std::vector<double> losses_;  // of the newest steps, oldest first
};

}  // namespace shardrun::train
