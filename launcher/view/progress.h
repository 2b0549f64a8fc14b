// The progress bar of a training run on a terminal, and the sparklines and number formats of tables.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launcher/view/metrics_log.h"
#include "runtime/base/text.h"

namespace shardrun::launcher {

// Returns "━━━━━━────  120/200  loss 2.4137  6,812 tokens/s  eta 00:41", less than `columns` wide, without what is not
// known; empty before the first step. With 0 as `total_steps`, there are as many as the curve says; where that does not, either,
// there is no bar.
std::string render_progress(const TrainingCurve& curve, int64_t total_steps, int columns);

// Returns "▇▅▃▂▁": the values over `columns` cells, each the mean of its share; empty for no values.
std::string sparkline(const std::vector<double>& values, int columns);

// 1234567 → "1,234,567".
std::string with_thousands(int64_t value);
using base::counted;
// 83 → "01:23", 3700 → "1:01:40".
std::string clock_time(double seconds);
// 1536 → "1.5 KiB".
std::string bytes_text(int64_t bytes);
// 1536 → "1.5 KiB/s".
std::string rate_text(double bytes_per_second);

}  // namespace shardrun::launcher
