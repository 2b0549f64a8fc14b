// RunSeries: the figures of a run step by step, as a report draws them, thinned so that a page of a million steps stays small.
//
// Thread rule: plain values and pure functions.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

namespace shardrun::launcher {

struct Series {
  std::vector<double> x, y;  // of equal length; x ascends; all finite

  // Appends a point. A step that comes again, after a restart, replaces what came at and after it; values that are not finite
  // are left out.
  void add(double x_value, double y_value);
};

struct RunSeries {
  Series loss, validation, tokens_per_second, step_seconds, grad_norm, learning_rate;
  int newest_attempt = 0;
};

// Adds the whole lines of `text`, which continues what was added before, from a metrics.jsonl.
void add_series(std::string_view text, RunSeries& series);

// Returns at most about `most` points: of each of equally many neighbours the first, the lowest, the highest and the last, in
// their order, so that a line through them looks as the line through all. most ≥ 4.
Series thinned(const Series& series, int most);

}  // namespace shardrun::launcher
