// The parts that our SVG pictures share: the frame, its grid and its words, readable on light and dark pages.
//
// Thread rule: pure functions.
#pragma once

#include <string>
#include <vector>

#include "launcher/view/report_series.h"

namespace shardrun::launcher {

// Maps data to the picture.
struct ChartAxes {
  static constexpr double kWidth = 720, kHeight = 360, kLeft = 64, kRight = 16, kTop = 36, kBottom = 40;
  double first = 0.0, last = 1.0;  // along x; last > first
  double low = 0.0, high = 1.0;    // along y; high > low
  double x(double value) const {
    return kLeft + (value - first) / (last - first) * (kWidth - kLeft - kRight);
  }
  double y(double value) const { return kTop + (high - value) / (high - low) * (kHeight - kTop - kBottom); }
  // Moves low and high apart, a little beyond the values between them; those may be equal.
  void add_margin();
};

// Returns the points of a polyline through `series`, about `most` of them, each spike among them.
std::string polyline(const ChartAxes& axes, const Series& series, int most);

// The words of a picture that lie so close that they could overprint each other: each takes the nearest free place, or none.
class ChartLabels {
 public:
  // Returns `text` as an element that ends or is centred at `x`, in pixels, with its baseline at `y` or up to four lines above or
  // below it inside the picture; "" where all of that is taken.
  std::string place(double x, double y, const std::string& text, bool centred = false);

 private:
  struct Box {
    double left, right, top, bottom;
  };
  std::vector<Box> taken_;
};

// Returns how wide words are in the font of chart_begin(), with room to spare.
double width_of(const std::string& text);
// Returns a round distance that puts about `wanted` marks on `span`.
double tick_distance(double span, int wanted);
// Returns `text` escaped for the contents of an element or an attribute.
std::string xml_text(const std::string& text);

inline constexpr int kLineColours = 6;
// Returns the opening element with the styles; their classes are title, grid, line, band, dot, reference, and c0 to c5, the colours
// of lines and bands in elements of that class; of dots and words, too, where it also has the class named.
std::string chart_begin(const std::string& label);
// Draws horizontal lines with their values and `unit` behind them.
std::string chart_grid(const ChartAxes& axes, const std::string& unit = "");
// Draws a value below the picture, at `x` of the axes; left out where there is no room beside the others.
std::string chart_x_mark(const ChartAxes& axes, ChartLabels& labels, double x, const std::string& text);
// Draws a dashed line across the picture at `y`, with words at its right end.
std::string chart_reference(const ChartAxes& axes, ChartLabels& labels, double y, const std::string& text);
// Draws a dot with words to its left, or to its right where there is no room.
std::string chart_dot(const ChartAxes& axes, ChartLabels& labels, double x, double y,
                      const std::string& text);
// Draws the title and the name of the x axis, and closes the element.
std::string chart_end(const std::string& title, const std::string& x_name);

}  // namespace shardrun::launcher
