#include "launcher/view/scale_plot.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include <fmt/format.h>

#include "launcher/view/svg_chart.h"

namespace shardrun::launcher {
namespace {

constexpr double kWidth = ChartAxes::kWidth - ChartAxes::kLeft - ChartAxes::kRight;  // of the lines

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

// Gives elements the colour of a line that has a name; one that has none is alone.
std::string coloured(const std::string& elements, const std::vector<ScaleSeries>& all,
                     const ScaleSeries& one) {
  if (one.name.empty()) return elements;
  return fmt::format("<g class=\"named c{}\">\n{}</g>\n", (&one - all.data()) % kLineColours, elements);
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

std::string name_of(const ScaleSeries& series) {
  return fmt::format("{} {:.0f} %", series.name, 100.0 * series.points.back().efficiency);
}

bool has_name(const ScaleSeries& series) {
  return series.points.size() >= 2 && !series.name.empty();
}

// Returns the pixels that names need to the right of the lines, at most half of all.
double room_for_names(const std::vector<ScaleSeries>& series) {
  double room = 0.0;
  for (const ScaleSeries& one : series)
    if (has_name(one)) room = std::max(room, width_of(name_of(one)) + 16.0);
  return std::min(room, 0.5 * kWidth);
}

// Writes the names of lines to the right of their last points.
std::string names_of(const ChartAxes& axes, ChartLabels& labels, const std::vector<ScaleSeries>& series) {
  std::multimap<double, const ScaleSeries*> by_height;
  for (const ScaleSeries& one : series)
    if (has_name(one)) by_height.emplace(axes.y(100.0 * one.points.back().efficiency) + 4.0, &one);
  std::string svg;
  for (const auto& [height, one] : by_height) {
    const std::string name = name_of(*one);
    const double right = axes.x(place(one->points.back().nodes)) + 8.0 + width_of(name);
    svg += coloured(labels.place(right, height, name), series, *one);
  }
  return svg;
}

}  // namespace

std::string scale_plot_svg(const std::vector<ScaleSeries>& series, const std::string& title) {
  std::set<int64_t> nodes;
  double high = 110.0, lowest = 100.0;
  for (const ScaleSeries& one : series) {
    if (one.points.size() < 2) continue;
    for (const ScalePoint& point : one.points) {
      nodes.insert(point.nodes);
      high = std::max(high, 105.0 * std::max(point.efficiency, point.high));
      lowest = std::min(lowest, 100.0 * (point.high > 0.0 ? point.low : point.efficiency));
    }
  }
  if (nodes.empty()) return "";
  const double low = std::max(0.0, std::floor(lowest / 10.0 - 0.5) * 10.0);
  const double first = place(*nodes.begin()) - 0.5, last = place(*nodes.rbegin()),
               room = room_for_names(series);
  const double behind = std::max(0.5, (last - first) * room / (kWidth - room));
  const ChartAxes axes{first, last + behind, low, high};
  ChartLabels labels;
  std::string svg =
      chart_begin(title) + chart_grid(axes, " %") + chart_reference(axes, labels, 100.0, "ideal");
  for (const int64_t count : nodes) svg += chart_x_mark(axes, labels, place(count), fmt::format("{}", count));
  for (const ScaleSeries& one : series)
    if (one.points.size() >= 2) svg += coloured(band_of(axes, one) + line_of(axes, labels, one), series, one);
  svg += names_of(axes, labels, series);
  return svg + chart_end(title, "nodes");
}

std::string scale_plot_svg(const std::vector<ScalePoint>& points, const std::string& title) {
  return scale_plot_svg(std::vector<ScaleSeries>{{"", points}}, title);
}

}  // namespace shardrun::launcher
