#include <cmath>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/foresight/forecast_fields.h"
#include "launcher/view/progress.h"
#include "launcher/view/scale_plot.h"
#include "runtime/base/json_fields.h"

namespace shardrun::launcher {

std::string layout_text(const Layout& layout) {
  std::string text = fmt::format("{}, tensor {}, micro-batch {} x {}, checkpointing {}",
                                 sharding_text(layout), layout.tensor_parallel, layout.micro_batch,
                                 layout.accumulation, name_of(layout.checkpointing));
  if (layout.activation_offload) text += ", activations offloaded";
  if (layout.optimizer_offload) text += ", moments offloaded";
  const Given& given = layout.given;
  if (given.pipeline > 1) text += fmt::format(", pipeline {} x {}", given.pipeline, given.pipeline_chunks);
  if (given.zero_bubble) text += " without bubbles";
  if (given.context_parallel > 1) text += fmt::format(", context {}", given.context_parallel);
  if (given.experts > 1)
    text +=
        fmt::format(", {} of {} experts over {}", given.active_experts, given.experts, given.expert_parallel);
  return text;
}

std::string gigabytes_text(const Interval& bytes) {
  return fmt::format("{:.1f} to {:.1f}", bytes.low / 1e9, bytes.high / 1e9);
}

namespace {

// "8.63 (7.41 to 10.05)"
std::string seconds_text(double seconds, const Estimate& estimate) {
  const Interval rate = estimate.interval();
  return fmt::format("{:.3f} ({:.3f} to {:.3f})", seconds, seconds / rate.high, seconds / rate.low);
}

std::string percent_text(double deviation) {
  return fmt::format("{:.0f} %", 100.0 * (Estimate{1.0, deviation}.interval().high - 1.0));
}

std::string step_text(const StepForecast& step, const Estimate& estimate) {
  return fmt::format("step {} s, {} tokens/s and {:.1f} TFLOP/s an accelerator ± {}",
                     seconds_text(step.seconds, estimate),
                     with_thousands(std::llround(step.tokens_per_second())), step.model_flops / 1e12,
                     percent_text(estimate.deviation));
}

void print_parts(const StepForecast& step) {
  const Phases& phases = step.phases;
  const Volumes& volumes = step.volumes;
  print_text(
      "  seconds    kernels {:.3f}, transfers not hidden {:.3f}, {}optimizer {:.3f}, host {:.3f}, straggling "
      "{:.3f}\n",
      phases.compute, phases.exposed,
      phases.bubble > 0.0 ? fmt::format("other stages {:.3f}, ", phases.bubble) : "", phases.optimizer,
      phases.host, phases.straggle);
  print_text(
      "  transfers  gather {:.3f}, reduce {:.3f}, replicas {:.3f}, tensor {:.3f}, offload {:.3f}; hidden or "
      "not\n",
      phases.gather, phases.reduce, phases.replica, phases.tensor, phases.offload);
  print_text("  GB a rank  gather {:.2f}, reduce {:.2f}, replicas {:.2f}, tensor {:.2f}, offload {:.2f}\n",
             volumes.gather / 1e9, volumes.reduce / 1e9, volumes.replica / 1e9, volumes.tensor / 1e9,
             volumes.offload / 1e9);
}

void print_line(const ForecastLine& line) {
  if (!line.best) {
    print_text("{:<16}{:>6}  {}\n", line.machine, line.nodes, line.reasons.front());
    return;
  }
  const Interval rate = line.estimate.interval();
  const std::string seconds =
      fmt::format("{:.3f} to {:.3f}", line.step.seconds / rate.high, line.step.seconds / rate.low);
  const std::string compared =
      line.efficiency_deviation > 0.0 ? "± " + percent_text(line.efficiency_deviation) : "";
  print_text("{:<16}{:>6}{:>10.3f}{:>20}{:>14}{:>9.1f}{:>7}{:>10.1f} %{:>7}{:>8.1f}{:>16}  {}", line.machine,
             line.nodes, line.step.seconds, seconds,
             with_thousands(std::llround(line.step.tokens_per_second())), line.step.model_flops / 1e12,
             "± " + percent_text(line.estimate.deviation), 100.0 * line.efficiency, compared,
             line.held_bytes() / 1e9, gigabytes_text(line.held_between()), layout_text(line.best->layout));
  const std::string sure = percent_text(line.estimate.deviation);
  if (line.hours) print_text("; {:.1f} h ± {}", *line.hours, sure);
  if (line.dollars) print_text(", {} dollars ± {}", with_thousands(std::llround(*line.dollars)), sure);
  print_text("\n");
}

void print_memory(const Written& written) {
  if (written.active_bytes != written.reserved_bytes)
    print_text("{:.1f} GB active, ", written.active_bytes / 1e9);
  print_text("{:.1f} GB reserved ({}) of {:.1f}", written.reserved_bytes / 1e9,
             gigabytes_text(written.reserved_between), written.usable_bytes / 1e9);
}

void print_written(const Written& written) {
  if (!written.sure) {
    print_text("as written   does not fit: ");
    print_memory(written);
    print_text("\n");
    for (const std::string& mend : written.mends) print_text("  would fit  {}\n", mend);
    return;
  }
  print_text("as written   {}\n", step_text(written.sure->step, written.sure->estimate));
  print_text("  fits       ");
  print_memory(written);
  print_text(", {:.0f} % are left\n", 100.0 * (1.0 - written.reserved_bytes / written.usable_bytes));
  print_parts(written.sure->step);
}

void print_saving(const Saving& saving, const StepForecast& step) {
  print_text(
      "  checkpoint every_steps = {} ({:.0f} min): a failure each {:.1f} h, {:.2f} % lost to saving and to "
      "steps taken "
      "back\n",
      saving.every_steps, static_cast<double>(saving.every_steps) * step.seconds / 60.0,
      saving.hours_between_failures, 100.0 * saving.lost_share);
}

}  // namespace

void print_forecast(const ForecastReport& report) {
  print_text("predicted    {} scaling, software {}, {}; {}\n", report.weak ? "weak" : "strong",
             report.software, report.fp8 ? "bf16 with linear layers in fp8" : "bf16",
             report.measured == 0
                 ? "nothing of this is measured; intervals hold four of five unseen published runs"
                 : fmt::format("from {}; intervals hold four of five such runs",
                               counted(report.measured, "measured run")));
  if (report.written) print_written(*report.written);
  if (report.lines.size() == 1 && report.lines.front().best) {
    const ForecastLine& line = report.lines.front();
    print_text("best         {}\n             {}\n", layout_text(line.best->layout),
               step_text(line.step, line.estimate));
    print_parts(line.step);
    for (const std::string& reason : line.reasons) print_text("  because    {}\n", reason);
    print_saving(line.saving, line.step);
  }
  print_text("{:<16}{:>6}{:>10}{:>20}{:>14}{:>9}{:>7}{:>12}{:>7}{:>8}{:>16}  best layout{}\n", "machine",
             "nodes", "step s", "80 %", "tokens/s", "TFLOP/s", "80 %", "efficiency", "80 %", "GB", "80 %",
             report.tokens > 0.0 ? fmt::format("; {:.3g} tokens take", report.tokens) : "");
  for (const ForecastLine& line : report.lines) print_line(line);
  std::set<std::string> told;
  for (const ForecastLine& line : report.lines)
    for (const std::string& words : line.beyond)
      if (told.insert(words).second) print_text("unseen       {}\n", words);
}

std::string to_json(const ForecastReport& report) {
  return base::json_of(report, base::kJsonReport);
}

std::string forecast_svg(const ForecastReport& report) {
  std::vector<ScaleSeries> series;
  for (const ForecastLine& line : report.lines) {
    if (!line.best) continue;
    if (series.empty() || series.back().name != line.machine) series.push_back({line.machine, {}});
    const Interval band = Estimate{1.0, line.efficiency_deviation}.interval();
    series.back().points.push_back(
        {line.nodes, line.efficiency, line.efficiency * band.low, line.efficiency * band.high});
  }
  return scale_plot_svg(series, fmt::format("{}: {} scaling efficiency, predicted ({})", report.job,
                                            report.weak ? "weak" : "strong", report.software));
}

}  // namespace shardrun::launcher
