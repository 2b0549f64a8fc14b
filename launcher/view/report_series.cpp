#include "launcher/view/report_series.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace shardrun::launcher {

Series series_of(const std::vector<StepPoint>& points, double StepPoint::*figure) {
  Series series;
  for (const StepPoint& point : points) {
    if (!std::isfinite(point.*figure)) continue;
    series.x.push_back(static_cast<double>(point.step));
    series.y.push_back(point.*figure);
  }
  return series;
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
