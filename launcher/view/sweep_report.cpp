#include "launcher/view/sweep_report.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/view/progress.h"
#include "launcher/view/svg_chart.h"
#include "runtime/base/json_fields.h"

namespace shardrun::launcher {
namespace {

std::string number_text(const std::optional<double>& value) {
  return value ? fmt::format("{:.4f}", *value) : "-";
}

// A colour for each curve, far from its neighbours' on the wheel.
std::string colour(int index) {
  return fmt::format("hsl({:.0f},70%,45%)", std::fmod(index * 137.508, 360.0));
}

}  // namespace

std::optional<int> best_run(const SweepReport& report) {
  const bool validated = std::any_of(report.runs.begin(), report.runs.end(),
                                     [](const SweepRun& run) { return run.validation_loss.has_value(); });
  std::optional<int> best;
  double least = 0.0;
  for (int i = 0; i < static_cast<int>(report.runs.size()); ++i) {
    const SweepRun& run = report.runs[static_cast<size_t>(i)];
    const std::optional<double>& loss = validated ? run.validation_loss : run.loss;
    if (run.status == "failed" || !loss || !std::isfinite(*loss) || (best && *loss >= least)) continue;
    best = i;
    least = *loss;
  }
  return best;
}

std::string sweep_table_text(const SweepReport& report) {
  size_t width = 6;
  for (const SweepRun& run : report.runs)
    width = std::max(width, fmt::format("{}", fmt::join(run.assignments, " ")).size());
  std::string text = fmt::format("{}: sweep {} of {}\n  {:<24} {:<{}} {:>8} {:>9} {:>10}  {}\n", report.name,
                                 report.id, counted(static_cast<int64_t>(report.runs.size()), "run"), "id",
                                 "values", width, "step", "loss", "validation", "status");
  const auto best = best_run(report);
  for (int i = 0; i < static_cast<int>(report.runs.size()); ++i) {
    const SweepRun& run = report.runs[static_cast<size_t>(i)];
    const std::string id = run.run.empty() ? "-" : run.run.substr(run.run.find_last_of('/') + 1);
    text += fmt::format("{} {:<24} {:<{}} {:>8} {:>9} {:>10}  {}\n", best == i ? "*" : " ", id,
                        fmt::format("{}", fmt::join(run.assignments, " ")), width,
                        run.step ? std::to_string(*run.step) : "-", number_text(run.loss),
                        number_text(run.validation_loss), run.status);
  }
  if (best) {
    const SweepRun& run = report.runs[static_cast<size_t>(*best)];
    text += fmt::format("* best: {} {}\n", run.validation_loss ? "validation loss" : "loss",
                        number_text(run.validation_loss ? run.validation_loss : run.loss));
  }
  return text;
}

std::string sweep_plot_svg(const SweepReport& report, const std::vector<TrainingCurve>& curves,
                           bool in_nats) {
  std::optional<ChartAxes> axes;
  for (const TrainingCurve& curve : curves) {
    for (const StepPoint& point : curve.steps) {
      if (!std::isfinite(point.loss)) continue;
      const auto step = static_cast<double>(point.step);
      if (!axes) axes = ChartAxes{step, step, point.loss, point.loss};
      axes->first = std::min(axes->first, step);
      axes->last = std::max(axes->last, step);
      axes->low = std::min(axes->low, point.loss);
      axes->high = std::max(axes->high, point.loss);
    }
  }
  if (!axes || axes->last <= axes->first) return "";
  axes->add_margin();
  ChartLabels marks;
  std::string svg = chart_begin(report.name) + chart_grid(*axes);
  const double tick = std::max(1.0, tick_distance(axes->last - axes->first, 8));
  for (double step = std::ceil(axes->first / tick) * tick; step <= axes->last; step += tick)
    svg += chart_x_mark(*axes, marks, step, fmt::format("{:.0f}", step));
  constexpr double kLineHeight = 14.0;
  constexpr int kMostNames =
      18;  // as many as fit beside the curves; each curve names itself under the pointer
  const auto best = best_run(report);
  for (int i = 0; i < static_cast<int>(curves.size()); ++i) {
    const TrainingCurve& curve = curves[static_cast<size_t>(i)];
    if (curve.steps.size() < 2) continue;
    const std::string name =
        xml_text(fmt::format("{}", fmt::join(report.runs[static_cast<size_t>(i)].assignments, " ")));
    svg += fmt::format("<polyline class=\"line\" style=\"stroke:{};stroke-width:{}\" points=\"", colour(i),
                       best == i ? "2.5" : "1.2");
    svg += polyline(*axes, series_of(curve.steps, &StepPoint::loss), /*most=*/2000);
    svg += fmt::format("\"><title>{}</title></polyline>\n", name);
    if (i < kMostNames)
      svg +=
          fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\" text-anchor=\"end\" style=\"fill:{}\">{}{}</text>\n",
                      ChartAxes::kWidth - ChartAxes::kRight - 4, ChartAxes::kTop + kLineHeight * (i + 1),
                      colour(i), name, best == i ? " *" : "");
  }
  return svg +
         chart_end(report.name + (in_nats ? ": loss of each run, nats per token" : ": loss of each run"),
                   "step");
}

void fields(auto& visit, base::Is<SweepRun> auto& run) {
  visit("assignments", run.assignments);
  visit("run", run.run);
  visit("status", run.status);
  visit("step", run.step);
  visit("loss", run.loss);
  visit("validation_loss", run.validation_loss);
}

void fields(auto& visit, base::Is<SweepReport> auto& report) {
  visit.version(1);
  visit("name", report.name);
  visit("id", report.id);
  visit("runs", report.runs);
}

std::string to_json(const SweepReport& report) {
  return base::json_of(report);
}

base::Result<SweepReport> parse_sweep_report(std::string_view text) {
  return base::parse_fields<SweepReport>(text, "sweep.json");
}

}  // namespace shardrun::launcher
