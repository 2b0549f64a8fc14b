#include "launcher/view/report_series.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "runtime/record/run_lines.h"

namespace shardrun::launcher {

void Series::add(double x_value, double y_value) {
  while (!x.empty() && x.back() >= x_value) {
    x.pop_back();
    y.pop_back();
  }
  if (!std::isfinite(y_value)) return;
  x.push_back(x_value);
  y.push_back(y_value);
}

void add_series(std::string_view text, RunSeries& series) {
  for (const record::MetricsLine& line : record::parse_metrics(text, series.newest_attempt)) {
    series.newest_attempt = line.attempt;
    if (!line.step) continue;
    const auto add = [step = static_cast<double>(*line.step)](Series& to,
                                                              const std::optional<double>& value) {
      if (value) to.add(step, *value);
    };
    if (line.event == "validation") add(series.validation, line.loss);
    if (line.event) continue;
    add(series.loss, line.loss);
    add(series.tokens_per_second, line.tokens_per_second);
    add(series.step_seconds, line.step_seconds);
    add(series.grad_norm, line.grad_norm);
    add(series.learning_rate, line.learning_rate);
  }
}

Series thinned(const Series& series, int most) {
  const auto count = static_cast<int64_t>(series.x.size());
  if (count <= most) return series;
  Series few;
  const int64_t groups = most / 4;
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t begin = group * count / groups, end = (group + 1) * count / groups;
    const auto [low, high] = std::minmax_element(series.y.begin() + begin, series.y.begin() + end);
    std::array<int64_t, 4> kept = {begin, low - series.y.begin(), high - series.y.begin(), end - 1};
    std::sort(kept.begin(), kept.end());
    for (auto at = kept.begin(); at != std::unique(kept.begin(), kept.end()); ++at) {
      if (!few.x.empty() && few.x.back() >= series.x[*at]) continue;
      few.x.push_back(series.x[*at]);
      few.y.push_back(series.y[*at]);
    }
  }
  return few;
}

}  // namespace shardrun::launcher
