#include "launcher/view/loss_plot.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace shardrun::launcher {
namespace {

constexpr double kWidth = 720, kHeight = 360, kLeft = 56, kRight = 16, kTop = 36, kBottom = 40;

// Data → picture.
struct Axes {
  double first_step, last_step, low, high;
  double x(double step) const {
    return kLeft + (step - first_step) / (last_step - first_step) * (kWidth - kLeft - kRight);
  }
  double y(double loss) const { return kTop + (high - loss) / (high - low) * (kHeight - kTop - kBottom); }
};

// A round distance that puts about `wanted` marks on `span`.
double tick_distance(double span, int wanted) {
  const double raw = span / wanted, unit = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (raw <= factor * unit) return factor * unit;
  }
  return 10.0 * unit;
}

std::string xml(const std::string& text) {
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

std::string grid(const Axes& axes) {
  std::string svg;
  const double loss_tick = tick_distance(axes.high - axes.low, 5);
  for (double loss = std::ceil(axes.low / loss_tick) * loss_tick; loss <= axes.high + 1e-9;
       loss += loss_tick) {
    svg += fmt::format("<line class=\"grid\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n",
                       kLeft, kWidth - kRight, axes.y(loss), axes.y(loss));
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{:g}</text>\n", kLeft - 8,
                       axes.y(loss) + 4, std::round(loss * 1000) / 1000);
  }
  const double step_tick = std::max(1.0, tick_distance(axes.last_step - axes.first_step, 8));
  for (double step = std::ceil(axes.first_step / step_tick) * step_tick; step <= axes.last_step;
       step += step_tick) {
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{:.0f}</text>\n", axes.x(step),
                       kHeight - kBottom + 18, step);
  }
  return svg;
}

}  // namespace

std::string loss_plot_svg(const TrainingCurve& curve, const std::string& title) {
  std::vector<StepPoint> points;
  for (const StepPoint& point : curve.steps) {
    if (std::isfinite(point.loss)) points.push_back(point);
  }
  if (points.size() < 2) return "";
  Axes axes{static_cast<double>(points.front().step), static_cast<double>(points.back().step), points[0].loss,
            points[0].loss};
  const auto widen = [&](double loss) {
    axes.low = std::min(axes.low, loss);
    axes.high = std::max(axes.high, loss);
  };
  for (const StepPoint& point : points) widen(point.loss);
  for (const StepPoint& point : curve.validations) {
    if (std::isfinite(point.loss)) widen(point.loss);
  }
  if (curve.unigram_entropy > 0) widen(curve.unigram_entropy);
  const double margin = std::max(1e-3, 0.05 * (axes.high - axes.low));
  axes.low -= margin;
  axes.high += margin;

  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\" "
      "role=\"img\" aria-label=\"{2}\">\n<style>text{{font:12px "
      "sans-serif;fill:#555}}.title{{font-size:14px}}"
      ".grid{{stroke:#8884;stroke-width:1}}.loss{{fill:none;stroke:#2a6fdb;stroke-width:1.8}}"
      ".validation{{fill:#d9480f}}.entropy{{stroke:#888;stroke-dasharray:5 4;stroke-width:1.2}}"
      "@media(prefers-color-scheme:dark){{text{{fill:#bbb}}.loss{{stroke:#74a9ff}}}}</style>\n",
      kWidth, kHeight, xml(title));
  svg += grid(axes);
  if (curve.unigram_entropy > 0) {
    const double y = axes.y(curve.unigram_entropy);
    svg += fmt::format(
        "<line class=\"entropy\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n"
        "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">unigram entropy of the validation text"
        "</text>\n",
        kLeft, kWidth - kRight, y, y, kWidth - kRight, y - 5);
  }
  svg += "<polyline class=\"loss\" points=\"";
  const size_t stride = std::max<size_t>(1, points.size() / 2000);
  for (size_t i = 0; i < points.size(); i += stride) {
    svg += fmt::format("{:.1f},{:.1f} ", axes.x(static_cast<double>(points[i].step)), axes.y(points[i].loss));
  }
  svg += "\"/>\n";
  for (const StepPoint& point : curve.validations) {
    if (!std::isfinite(point.loss)) continue;
    const double x = std::clamp(axes.x(static_cast<double>(point.step)), kLeft, kWidth - kRight);
    svg += fmt::format(
        "<circle class=\"validation\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\"/>\n<text x=\"{:.1f}\" "
        "y=\"{:.1f}\" text-anchor=\"end\">validation {:.3f}</text>\n",
        x, axes.y(point.loss), x - 8, axes.y(point.loss) - 6, point.loss);
  }
  svg += fmt::format(
      "<text class=\"title\" x=\"{:.1f}\" y=\"20\">{}: loss, nats per token</text>\n<text x=\"{:.1f}\" "
      "y=\"{:.1f}\" text-anchor=\"middle\">step</text>\n</svg>\n",
      kLeft, xml(title), kLeft + (kWidth - kLeft - kRight) / 2, kHeight - 6);
  return svg;
}

}  // namespace shardrun::launcher
