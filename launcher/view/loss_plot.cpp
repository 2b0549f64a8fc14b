#include "launcher/view/loss_plot.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "launcher/view/svg_chart.h"

namespace shardrun::launcher {

std::string loss_plot_svg(const TrainingCurve& curve, const std::string& title, bool in_nats) {
  std::vector<StepPoint> points;
  for (const StepPoint& point : curve.steps) {
    if (std::isfinite(point.loss)) points.push_back(point);
  }
  if (points.size() < 2) return "";
  ChartAxes axes{static_cast<double>(points.front().step), static_cast<double>(points.back().step),
                 points[0].loss, points[0].loss};
  const auto widen = [&](double loss) {
    axes.low = std::min(axes.low, loss);
    axes.high = std::max(axes.high, loss);
  };
  for (const StepPoint& point : points) widen(point.loss);
  for (const StepPoint& point : curve.validations) {
    if (std::isfinite(point.loss)) widen(point.loss);
  }
  if (curve.unigram_entropy > 0) widen(curve.unigram_entropy);
  axes.add_margin();

  ChartLabels labels;
  std::string svg = chart_begin(title) + chart_grid(axes);
  const double tick = std::max(1.0, tick_distance(axes.last - axes.first, 8));
  for (double step = std::ceil(axes.first / tick) * tick; step <= axes.last; step += tick)
    svg += chart_x_mark(axes, labels, step, fmt::format("{:.0f}", step));
  if (curve.unigram_entropy > 0)
    svg += chart_reference(axes, labels, curve.unigram_entropy, "unigram entropy of the validation text");
  svg += "<polyline class=\"line\" points=\"" +
         polyline(axes, series_of(points, &StepPoint::loss), /*most=*/4000) + "\"/>\n";
  // The newest first: where there is no room for all words, it has them.
  for (auto point = curve.validations.rbegin(); point != curve.validations.rend(); ++point) {
    if (!std::isfinite(point->loss)) continue;
    svg += chart_dot(axes, labels, static_cast<double>(point->step), point->loss,
                     fmt::format("validation {:.3f}", point->loss));
  }
  return svg + chart_end(title + (in_nats ? ": loss, nats per token" : ": loss"), "step");
}

}  // namespace shardrun::launcher
