// Series: one figure of a run step by step, as a report draws it, thinned so that a page of a million steps stays small.
//
// Thread rule: plain values and pure functions.
#pragma once

#include <vector>

#include "launcher/view/metrics_log.h"

namespace shardrun::launcher {

struct Series {
  std::vector<double> x, y;  // of equal length; x ascends; all finite
};

// Returns one figure of each of the points; what is not finite is left out.
Series series_of(const std::vector<StepPoint>& points, double StepPoint::*figure);

// Returns at most about `most` points: of each of equally many neighbours the first, the lowest, the highest and the last, in
// their order, so that a line through them looks as the line through all. most ≥ 4.
Series thinned(const Series& series, int most);

}  // namespace shardrun::launcher
