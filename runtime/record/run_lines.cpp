#include "runtime/record/run_lines.h"

#include "runtime/base/io.h"
#include "runtime/base/json_fields.h"

namespace shardrun::record {

using base::decimals;
using base::significant;

void fields(auto& visit, base::Is<MetricsLine> auto& line) {
  visit.where_known("event", line.event);
  visit.where_known("seconds", line.seconds, decimals(6));
  visit.where_known("unix_time", line.unix_time, decimals(6));
  visit.where_known("step", line.step);
  visit.where_known("loss", line.loss, significant(9));
  visit.where_known("loss_hex", line.loss_hex);
  visit.where_known("learning_rate", line.learning_rate, significant(9));
  visit.where_known("grad_norm", line.grad_norm, significant(9));
  visit.where_known("unigram_entropy", line.unigram_entropy, significant(9));
  visit.where_known("tokens_per_second", line.tokens_per_second, decimals(1));
  visit.where_known("step_seconds", line.step_seconds, decimals(6));
  visit.where_known("path", line.path);
  visit.where_known("stall_seconds", line.stall_seconds, decimals(6));
  visit.where_known("time", line.time, decimals(3));
  visit.later("attempt", line.attempt);
}

void fields(auto& visit, base::Is<EventLine> auto& line) {
  visit("time", line.time);
  visit("event", line.event);
  visit("attempt", line.attempt);
  visit.where_known("busy_seconds", line.busy_seconds);
  visit.where_known("bytes_per_second", line.bytes_per_second);
  visit.where_known("exit_code", line.exit_code);
  visit.where_known("global_batch", line.global_batch);
  visit.where_known("global_rank", line.global_rank);
  visit.where_known("gradient_accumulation", line.gradient_accumulation);
  visit.where_known("kind", line.kind);
  visit.where_known("line", line.line);
  visit.where_known("median_seconds", line.median_seconds);
  visit.where_known("next", line.next);
  visit.where_known("node", line.node);
  visit.where_known("nodes", line.nodes);
  visit.where_known("reason", line.reason);
  visit.where_known("seconds", line.seconds);
  visit.where_known("status", line.status);
  visit.where_known("usual_bytes_per_second", line.usual_bytes_per_second);
  visit.where_known("verdict", line.verdict);
  visit.where_known("warnings", line.warnings);
  visit.where_known("world_size", line.world_size);
}

namespace {

template <typename Line>
std::vector<Line> lines_of_newest(std::string_view text, int newest) {
  std::vector<Line> lines;
  while (!text.empty()) {
    auto line = base::parse_fields<Line>(base::take_line(text), "a line");
    if (!line || line->attempt < newest) continue;
    newest = line->attempt;
    lines.push_back(std::move(line).value());
  }
  return lines;
}

// Returns the last whole line of a metrics.jsonl for which `wanted` holds; only lines with `word` in them are parsed.
template <typename Wanted>
std::optional<MetricsLine> find_last(const std::string& path, std::string_view word, Wanted wanted) {
  std::optional<MetricsLine> found;
  (void)base::find_last_line(path, [&](std::string_view text) {
    if (text.find(word) == std::string_view::npos) return false;
    auto line = base::parse_fields<MetricsLine>(text, "a line");
    if (line && wanted(*line)) found = std::move(*line);
    return found.has_value();
  });
  return found;
}

}  // namespace

std::string to_json(const MetricsLine& line) {
  return base::json_of(line, base::kJsonLine);
}

std::string to_json(const EventLine& line) {
  return base::json_of(line, base::kJsonLine);
}

std::vector<MetricsLine> parse_metrics(std::string_view text, int from_attempt) {
  return lines_of_newest<MetricsLine>(text, from_attempt);
}

std::vector<EventLine> parse_events(std::string_view text) {
  return lines_of_newest<EventLine>(text, 0);
}

std::optional<int64_t> find_last_step(const std::string& path) {
  const auto line = find_last(path, "\"step\"", [](const MetricsLine& one) { return one.step.has_value(); });
  return line ? line->step : std::nullopt;
}

std::optional<int64_t> find_last_checkpoint(const std::string& path, int attempt) {
  const auto line = find_last(path, "\"checkpoint\"", [&](const MetricsLine& one) {
    return one.event == "checkpoint" && one.attempt == attempt;
  });
  return line ? std::optional(line->step.value_or(0)) : std::nullopt;
}

}  // namespace shardrun::record
