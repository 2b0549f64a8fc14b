#include "launcher/view/svg_chart.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <fmt/format.h>

namespace shardrun::launcher {
namespace {

using Axes = ChartAxes;

}  // namespace

double width_of(const std::string& text) {
  constexpr double kCharacter = 7.0;
  return kCharacter * static_cast<double>(std::count_if(text.begin(), text.end(), [](char c) {
           return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
         }));
}

double tick_distance(double span, int wanted) {
  const double raw = span / wanted, unit = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (raw <= factor * unit) return factor * unit;
  }
  return 10.0 * unit;
}

void ChartAxes::add_margin() {
  const double size = std::max(std::abs(low), std::abs(high));
  const double margin = std::max(size > 0.0 ? 1e-3 * size : 1e-3, 0.05 * (high - low));
  low -= margin;
  high += margin;
}

std::string polyline(const ChartAxes& axes, const Series& series, int most) {
  const Series few = thinned(series, most);
  std::string points;
  for (size_t i = 0; i < few.x.size(); ++i)
    points += fmt::format("{:.1f},{:.1f} ", axes.x(few.x[i]), axes.y(few.y[i]));
  return points;
}

std::string xml_text(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

std::string chart_begin(const std::string& label) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\" "
      "role=\"img\" aria-label=\"{2}\" class=\"c0\">\n<style>text{{font:12px "
      "sans-serif;fill:#555}}.title{{font-size:14px}}"
      ".grid{{stroke:#8884;stroke-width:1}}.line{{fill:none;stroke:currentColor;stroke-width:1.8}}"
      ".band{{fill:currentColor;opacity:.13}}"
      ".dot{{fill:#d9480f}}.named .dot,.named text{{fill:currentColor}}"
      ".reference{{stroke:#888;stroke-dasharray:5 4;stroke-width:1.2}}"
      ".c0{{color:#2a6fdb}}.c1{{color:#c2410c}}.c2{{color:#2b8a3e}}.c3{{color:#9c36b5}}.c4{{color:#0b7285}}"
      ".c5{{color:#a61e4d}}"
      "@media(prefers-color-scheme:dark){{text{{fill:#bbb}}.c0{{color:#74a9ff}}.c1{{color:#ff922b}}"
      ".c2{{color:#69db7c}}.c3{{color:#da77f2}}.c4{{color:#3bc9db}}.c5{{color:#faa2c1}}}}</style>\n",
      Axes::kWidth, Axes::kHeight, xml_text(label));
}

std::string chart_grid(const ChartAxes& axes, const std::string& unit) {
  std::string svg;
  const double tick = tick_distance(axes.high - axes.low, 5);
  if (!std::isfinite(tick)) return "";
  const auto last = static_cast<int64_t>(std::floor(axes.high / tick + 1e-6));
  for (auto at = static_cast<int64_t>(std::ceil(axes.low / tick - 1e-6)); at <= last; ++at) {
    const double value = static_cast<double>(at) * tick;
    svg += fmt::format("<line class=\"grid\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n",
                       Axes::kLeft, Axes::kWidth - Axes::kRight, axes.y(value), axes.y(value));
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{:g}{}</text>\n", Axes::kLeft - 8,
                       axes.y(value) + 4, value, unit);
  }
  return svg;
}

std::string ChartLabels::place(double x, double y, const std::string& text, bool centred) {
  constexpr double kLine = 14.0;  // of the font in chart_begin()
  if (text.empty()) return "";
  const double width = width_of(text);
  for (const int lines : {0, -1, 1, -2, 2, -3, 3, -4, 4}) {
    const double at = y + lines * kLine;
    const Box box{centred ? x - width / 2 : x - width, centred ? x + width / 2 : x, at - kLine + 3.0,
                  at + 2.0};
    const bool inside = centred ? lines == 0 : at > Axes::kTop - 8 && at < Axes::kHeight - Axes::kBottom + 4;
    const bool free = std::none_of(taken_.begin(), taken_.end(), [&](const Box& other) {
      return box.left < other.right && other.left < box.right && box.top < other.bottom &&
             other.top < box.bottom;
    });
    if (!inside || !free) continue;
    taken_.push_back(box);
    return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, at,
                       centred ? "middle" : "end", xml_text(text));
  }
  return "";
}

std::string chart_x_mark(const ChartAxes& axes, ChartLabels& labels, double x, const std::string& text) {
  return labels.place(axes.x(x), Axes::kHeight - Axes::kBottom + 18, text, /*centred=*/true);
}

std::string chart_reference(const ChartAxes& axes, ChartLabels& labels, double y, const std::string& text) {
  return fmt::format("<line class=\"reference\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n",
                     Axes::kLeft, Axes::kWidth - Axes::kRight, axes.y(y), axes.y(y)) +
         labels.place(Axes::kWidth - Axes::kRight, axes.y(y) - 5, text);
}

std::string chart_dot(const ChartAxes& axes, ChartLabels& labels, double x, double y,
                      const std::string& text) {
  const double at = std::clamp(axes.x(x), Axes::kLeft, Axes::kWidth - Axes::kRight);
  // Further left are the numbers of the y axis.
  const double right = at - 8 - width_of(text) < Axes::kLeft ? at + 8 + width_of(text) : at - 8;
  return fmt::format("<circle class=\"dot\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\"/>\n", at, axes.y(y)) +
         labels.place(right, axes.y(y) - 6, text);
}

std::string chart_end(const std::string& title, const std::string& x_name) {
  return fmt::format(
      "<text class=\"title\" x=\"{:.1f}\" y=\"20\">{}</text>\n<text x=\"{:.1f}\" "
      "y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n</svg>\n",
      Axes::kLeft, xml_text(title), Axes::kLeft + (Axes::kWidth - Axes::kLeft - Axes::kRight) / 2,
      Axes::kHeight - 6, xml_text(x_name));
}

}  // namespace shardrun::launcher
