#include "runtime/record/run_lines.h"

#include <sys/stat.h>

#include <algorithm>

#include "runtime/base/io.h"
#include "runtime/base/json_fields.h"
#include "runtime/base/text.h"

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
  visit.where_known("resident_bytes", line.resident_bytes);
  visit.where_known("set", line.set);
  visit.where_known("path", line.path);
  visit.where_known("stall_seconds", line.stall_seconds, decimals(6));
  visit.where_known("time", line.time, decimals(3));
  visit.where_known("total_steps", line.total_steps);
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
    if (!line) continue;
    if (line->attempt < 0) line->attempt = newest;
    if (line->attempt < newest) continue;
    newest = line->attempt;
    lines.push_back(std::move(line).value());
  }
  return lines;
}

// Returns the last of the whole lines for which `wanted` holds; lines without `word` are not parsed.
template <typename Wanted>
std::optional<MetricsLine> find_last(std::string_view text, std::string_view word, Wanted wanted) {
  size_t end = text.rfind('\n');
  while (end != std::string_view::npos && end > 0) {
    const size_t newline = text.rfind('\n', end - 1);
    const size_t begin = newline == std::string_view::npos ? 0 : newline + 1;
    const std::string_view piece = text.substr(begin, end - begin);
    end = newline;
    if (piece.find(word) == std::string_view::npos) continue;
    const auto line = base::parse_fields<MetricsLine>(piece, "a line");
    if (line && wanted(*line)) return *line;
  }
  return std::nullopt;
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

std::vector<EventLine> parse_events(std::string_view text, int from_attempt) {
  return lines_of_newest<EventLine>(text, from_attempt);
}

std::optional<int64_t> last_step(std::string_view metrics) {
  const auto line = find_last(metrics, "step", [](const MetricsLine& one) { return one.step.has_value(); });
  return line ? line->step : std::nullopt;
}

std::optional<int64_t> last_checkpoint(std::string_view metrics, int attempt) {
  const auto line = find_last(metrics, "checkpoint", [&](const MetricsLine& one) {
    return one.event == "checkpoint" && one.attempt == attempt;
  });
  return line ? std::optional(line->step.value_or(0)) : std::nullopt;
}

std::optional<MetricsLine> last_event(std::string_view metrics, std::string_view event) {
  return find_last(metrics, event, [&](const MetricsLine& one) { return one.event == event; });
}

std::string first_lines(const std::string& path) {
  constexpr int64_t kMostHeadBytes = int64_t{64} << 10;
  const auto fd = base::open_to_read(path);
  struct stat status {};
  if (!fd || ::fstat(fd->get(), &status) != 0) return "";
  std::string text(static_cast<size_t>(std::min<int64_t>(status.st_size, kMostHeadBytes)), '\0');
  if (!base::read_exactly(fd->get(), std::as_writable_bytes(std::span(text)), 0, path)) return "";
  text.erase(text.rfind('\n') + 1);
  return text;
}

std::string last_lines(const std::string& path, int64_t most_bytes) {
  const auto fd = base::open_to_read(path);
  struct stat status {};
  if (!fd || ::fstat(fd->get(), &status) != 0) return "";
  const int64_t begin = std::max<int64_t>(0, status.st_size - most_bytes);
  std::string text(static_cast<size_t>(status.st_size - begin), '\0');
  const auto bytes = std::as_writable_bytes(std::span(text));
  if (!base::read_exactly(fd->get(), bytes, static_cast<uint64_t>(begin), path)) return "";
  if (begin > 0) text.erase(0, std::min(text.find('\n'), text.size() - 1) + 1);
  return text;
}

}  // namespace shardrun::record
