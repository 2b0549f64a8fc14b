#include "launcher/view/scale_plot.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include <fmt/format.h>

#include "launcher/view/svg_chart.h"

namespace shardrun::launcher {
namespace {

double place(int64_t nodes) {
  return std::log2(static_cast<double>(nodes));
}

// The intervals of a line's points, as one area: along their upper ends, and back along the lower ones.
std::string band_of(const ChartAxes& axes, const ScaleSeries& series) {
  std::string upper, lower;
  for (const ScalePoint& point : series.points) {
    if (point.high == 0.0) return "";
    const double x = axes.x(place(point.nodes));
    upper += fmt::format("{:.1f},{:.1f} ", x, axes.y(100.0 * point.high));
    lower = fmt::format("{:.1f},{:.1f} ", x, axes.y(100.0 * point.low)) + lower;
  }
  return "<polygon class=\"band\" points=\"" + upper + lower + "\"/>\n";
}

std::string line_of(const ChartAxes& axes, ChartLabels& labels, const ScaleSeries& series) {
  std::string svg, line;
  for (const ScalePoint& point : series.points) {
    const double percent = 100.0 * point.efficiency;
    const std::string text = series.name.empty() ? fmt::format("{:.0f} %", percent) : "";
    line += fmt::format("{:.1f},{:.1f} ", axes.x(place(point.nodes)), axes.y(percent));
    svg += chart_dot(axes, labels, place(point.nodes), percent, text);
  }
  return svg + "<polyline class=\"line\" points=\"" + line + "\"/>\n";
}

// Writes the names of lines at their last points.
std::string names_of(const ChartAxes& axes, ChartLabels& labels, const std::vector<ScaleSeries>& series) {
  std::multimap<double, const ScaleSeries*> by_height;
  for (const ScaleSeries& one : series)
    if (one.points.size() >= 2 && !one.name.empty())
      by_height.emplace(axes.y(100.0 * one.points.back().efficiency) + 18.0, &one);
  std::string svg;
  for (const auto& [height, one] : by_height)
    svg += labels.place(axes.x(place(one->points.back().nodes)) - 8.0, height,
                        fmt::format("{} {:.0f} %", one->name, 100.0 * one->points.back().efficiency));
  return svg;
}

}  // namespace

std::string scale_plot_svg(const std::vector<ScaleSeries>& series, const std::string& title) {
  std::set<int64_t> nodes;
  double high = 110.0;
  for (const ScaleSeries& one : series) {
    if (one.points.size() < 2) continue;
    for (const ScalePoint& point : one.points) {
      nodes.insert(point.nodes);
      high = std::max(high, 105.0 * std::max(point.efficiency, point.high));
    }
  }
  if (nodes.empty()) return "";
  const ChartAxes axes{place(*nodes.begin()) - 0.5, place(*nodes.rbegin()) + 0.5, 0.0, high};
  ChartLabels labels;
  std::string svg =
      chart_begin(title) + chart_grid(axes, " %") + chart_reference(axes, labels, 100.0, "ideal");
  for (const int64_t count : nodes) svg += chart_x_mark(axes, labels, place(count), fmt::format("{}", count));
  for (const ScaleSeries& one : series)
    if (one.points.size() >= 2) svg += band_of(axes, one) + line_of(axes, labels, one);
  svg += names_of(axes, labels, series);
  return svg + chart_end(title, "nodes");
}

std::string scale_plot_svg(const std::vector<ScalePoint>& points, const std::string& title) {
  return scale_plot_svg(std::vector<ScaleSeries>{{"", points}}, title);
}

}  // namespace shardrun::launcher
