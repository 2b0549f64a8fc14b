#include "launcher/view/scale_report.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/view/progress.h"
#include "runtime/base/json_fields.h"

namespace shardrun::launcher {
namespace {

// Returns sequences a second or tokens a second; they are compared only within one report.
std::optional<double> speed(const ScaleLine& line) {
  if (!line.result || line.result->status != "completed") return std::nullopt;
  if (line.result->tokens_per_second && *line.result->tokens_per_second > 0.0)
    return line.result->tokens_per_second;
  if (!line.result->seconds || *line.result->seconds <= 0.0) return std::nullopt;
  return static_cast<double>(line.batch.global_batch) / *line.result->seconds;
}

std::string sequences_text(const plan::BatchPlan& batch) {
  const int64_t most = batch.sequences_of(0), least = batch.sequences_of(batch.data_parallel - 1);
  return most == least ? with_thousands(most)
                       : fmt::format("{} or {}", with_thousands(most), with_thousands(least));
}

std::string result_text(const ScaleResult& result) {
  if (result.status != "completed") return result.status;
  std::string text;
  const bool tells_tokens = result.tokens_per_second.value_or(0.0) > 0.0;
  if (tells_tokens) text = fmt::format("{:.0f} tokens/s", *result.tokens_per_second);
  if (!tells_tokens && result.seconds) text = fmt::format("{:.1f} s", *result.seconds);
  if (result.efficiency) text += fmt::format(", efficiency {:.1f} %", 100.0 * *result.efficiency);
  return text;
}

// Returns "what is wrong", without the place and without the mend.
std::string short_refusal(const std::string& refusal) {
  const size_t begin = refusal.find(": ");
  const std::string what = refusal.substr(begin == std::string::npos ? 0 : begin + 2);
  return what.substr(0, what.find(';'));
}

std::string refusal_text(const ScaleRefusal& refusal) {
  return fmt::format("refused: {}; {}", short_refusal(refusal.why),
                     refusal.nearest_nodes.empty()
                         ? "no number of nodes works"
                         : fmt::format("nearest: {}", fmt::join(refusal.nearest_nodes, " or ")));
}

}  // namespace

void measure_efficiency(ScaleReport& report) {
  std::optional<double> reference;  // speed of a node
  for (ScaleLine& line : report.lines) {
    const auto measured = speed(line);
    if (!measured) continue;
    const double of_a_node = *measured / static_cast<double>(line.nodes);
    if (!reference) reference = of_a_node;
    line.result->efficiency = of_a_node / *reference;
  }
}

std::string scale_table_text(const ScaleReport& report) {
  std::string text =
      fmt::format("{}: {} scaling{}\n{:>6} {:>7} {:>13} {:>12} {:>17} {:>13} {:>15}\n", report.name,
                  report.scaling, report.id.empty() ? "" : ", array " + report.id, "nodes", "ranks",
                  "accumulation", "micro-steps", "sequences a rank", "global batch", "tokens a step");
  for (const ScaleLine& line : report.lines) {
    text += fmt::format("{:>6} {:>7} ", line.nodes, line.ranks);
    if (line.refusal) {
      text += refusal_text(*line.refusal) + "\n";
      continue;
    }
    text += fmt::format("{:>13} {:>12} {:>17} {:>13} {:>15}",
                        with_thousands(line.batch.gradient_accumulation), with_thousands(line.micro_steps),
                        sequences_text(line.batch), with_thousands(line.batch.global_batch),
                        line.tokens_per_step ? with_thousands(*line.tokens_per_step) : "-");
    if (line.result) text += "   " + result_text(*line.result);
    text += "\n";
  }
  return text;
}

void fields(auto& visit, base::Is<ScaleRefusal> auto& refusal) {
  visit("refused", refusal.why);
  visit.later("nearest_nodes", refusal.nearest_nodes);
}

void fields(auto& visit, base::Is<ScaleResult> auto& result) {
  visit("run", result.run);
  visit("status", result.status);
  visit("tokens_per_second", result.tokens_per_second);
  visit("seconds", result.seconds);
  visit("efficiency", result.efficiency);
}

void fields(auto& visit, base::Is<ScaleLine> auto& line) {
  visit("nodes", line.nodes);
  visit("ranks", line.ranks);
  visit.part("refused", line.refusal);
  if (line.refusal) return;
  visit("batch", line.batch);
  visit("micro_steps", line.micro_steps);
  visit("tokens_per_step", line.tokens_per_step);
  visit.part("run", line.result);
}

void fields(auto& visit, base::Is<ScaleReport> auto& report) {
  visit.version(1);
  visit("name", report.name);
  visit("scaling", report.scaling);
  visit("id", report.id);
  visit("rows", report.lines);
}

std::string to_json(const ScaleReport& report) {
  return base::json_of(report);
}

base::Result<ScaleReport> parse_scale_report(std::string_view text) {
  auto report = base::parse_fields<ScaleReport>(text, "scale.json");
  if (!report) return report;
  for (const ScaleLine& line : report->lines) {
    if (!line.refusal && !line.batch.is_possible())
      return base::Error(base::Code::kCorrupt,
                         fmt::format("scale.json: row of {} nodes has no batch", line.nodes));
  }
  return report;
}

}  // namespace shardrun::launcher
