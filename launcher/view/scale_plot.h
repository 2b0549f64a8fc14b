// Draws how well a job scales as an SVG picture: efficiency over the number of nodes.
//
// Thread rule: pure function.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shardrun::launcher {

struct ScalePoint {
  int64_t nodes = 0;
  double efficiency = 0.0;       // speed of a node, as a share of the speed on the smallest number of nodes
  double low = 0.0, high = 0.0;  // interval of a prediction, drawn as a band; both 0: it was measured
};

struct ScaleSeries {
  // Stands at the last point; if it is empty, points carry their values instead.
  std::string name;
  std::vector<ScalePoint> points;  // ascending
};

// The x axis is logarithmic in the number of nodes. Returns "" for fewer than two points. `points` ascend.
std::string scale_plot_svg(const std::vector<ScalePoint>& points, const std::string& title);
// Draws several lines in one picture; series of fewer than two points are left out.
std::string scale_plot_svg(const std::vector<ScaleSeries>& series, const std::string& title);

}  // namespace shardrun::launcher
