#include "launcher/view/scale_plot.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "launcher/view/svg_chart.h"

namespace shardrun::launcher {

std::string scale_plot_svg(const std::vector<ScalePoint>& points, const std::string& title) {
  if (points.size() < 2) return "";
  const auto place = [](const ScalePoint& point) { return std::log2(static_cast<double>(point.nodes)); };
  ChartAxes axes{place(points.front()) - 0.5, place(points.back()) + 0.5, 0.0, 110.0};
  for (const ScalePoint& point : points) axes.high = std::max(axes.high, 105.0 * point.efficiency);
  std::string svg = chart_begin(title) + chart_grid(axes, " %") + chart_reference(axes, 100.0, "ideal");
  std::string line;
  for (const ScalePoint& point : points) {
    const double percent = 100.0 * point.efficiency;
    svg += chart_x_mark(axes, place(point), fmt::format("{}", point.nodes));
    line += fmt::format("{:.1f},{:.1f} ", axes.x(place(point)), axes.y(percent));
    svg += chart_dot(axes, place(point), percent, fmt::format("{:.0f} %", percent));
  }
  svg += "<polyline class=\"line\" points=\"" + line + "\"/>\n";
  return svg + chart_end(title, "nodes");
}

}  // namespace shardrun::launcher
