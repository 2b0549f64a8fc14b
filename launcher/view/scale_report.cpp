#include "launcher/view/scale_report.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "launcher/view/progress.h"
#include "runtime/base/json.h"

namespace shardrun::launcher {
namespace {

using nlohmann::json;

template <typename T>
json or_null(const std::optional<T>& value) {
  return value ? json(*value) : json(nullptr);
}

json nearest_json(const ScaleLine& line) {
  json nearest = json::array();
  if (line.nearest_below > 0) nearest.push_back(line.nearest_below);
  if (line.nearest_above > 0) nearest.push_back(line.nearest_above);
  return nearest;
}

json line_json(const ScaleLine& line) {
  json out = {{"nodes", line.nodes}, {"ranks", line.ranks}};
  if (!line.refusal.empty()) {
    out["refused"] = line.refusal;
    out["nearest_nodes"] = nearest_json(line);
    return out;
  }
  out["batch"] = {{"global_batch", line.batch.global_batch},
                  {"micro_batch", line.batch.micro_batch},
                  {"gradient_accumulation", line.batch.gradient_accumulation},
                  {"data_parallel", line.batch.data_parallel}};
  out["micro_steps"] = line.micro_steps;
  out["tokens_per_step"] = or_null(line.tokens_per_step);
  if (line.result) {
    out["run"] = line.result->run;
    out["status"] = line.result->status;
    out["tokens_per_second"] = or_null(line.result->tokens_per_second);
    out["seconds"] = or_null(line.result->seconds);
    out["efficiency"] = or_null(line.result->efficiency);
  }
  return out;
}

template <typename T>
std::optional<T> optional_of(const json& object, const char* key) {
  if (!object.contains(key) || !object[key].is_number()) return std::nullopt;
  return object[key].get<T>();
}

std::string text_of(const json& object, const char* key) {
  return object.contains(key) && object[key].is_string() ? object[key].get<std::string>() : "";
}

ScaleLine parse_line(const json& object) {
  const auto number = [](const json& from, const char* key) {
    return optional_of<int64_t>(from, key).value_or(0);
  };
  ScaleLine line;
  line.nodes = number(object, "nodes");
  line.ranks = number(object, "ranks");
  line.refusal = text_of(object, "refused");
  if (const auto nearest = object.find("nearest_nodes"); nearest != object.end() && nearest->is_array()) {
    for (const json& count : *nearest) {
      if (!count.is_number_integer()) continue;
      (count.get<int64_t>() < line.nodes ? line.nearest_below : line.nearest_above) = count.get<int64_t>();
    }
  }
  if (const auto batch = object.find("batch"); batch != object.end()) {
    line.batch = {number(*batch, "global_batch"), number(*batch, "micro_batch"),
                  number(*batch, "gradient_accumulation"), number(*batch, "data_parallel")};
  }
  line.micro_steps = number(object, "micro_steps");
  line.tokens_per_step = optional_of<int64_t>(object, "tokens_per_step");
  if (object.contains("run")) {
    line.result = ScaleResult{
        text_of(object, "run"), text_of(object, "status"), optional_of<double>(object, "tokens_per_second"),
        optional_of<double>(object, "seconds"), optional_of<double>(object, "efficiency")};
  }
  return line;
}

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
  if (result.tokens_per_second) text = fmt::format("{:.0f} tokens/s", *result.tokens_per_second);
  if (!result.tokens_per_second && result.seconds) text = fmt::format("{:.1f} s", *result.seconds);
  if (result.efficiency) text += fmt::format(", efficiency {:.1f} %", 100.0 * *result.efficiency);
  return text;
}

// Returns "what is wrong", without the place and without the mend.
std::string short_refusal(const std::string& refusal) {
  const size_t begin = refusal.find(": ");
  const std::string what = refusal.substr(begin == std::string::npos ? 0 : begin + 2);
  return what.substr(0, what.find(';'));
}

std::string refusal_text(const ScaleLine& line) {
  std::string nearest;
  for (const int64_t count : {line.nearest_below, line.nearest_above}) {
    if (count > 0) nearest += fmt::format("{}{}", nearest.empty() ? "" : " or ", count);
  }
  return fmt::format("refused: {}; {}", short_refusal(line.refusal),
                     nearest.empty() ? "no number of nodes works" : "nearest: " + nearest);
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
    if (!line.refusal.empty()) {
      text += refusal_text(line) + "\n";
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

std::string to_json(const ScaleReport& report) {
  json lines = json::array();
  for (const ScaleLine& line : report.lines) lines.push_back(line_json(line));
  const json out = {{"format_version", 1},
                    {"name", report.name},
                    {"scaling", report.scaling},
                    {"id", report.id},
                    {"rows", std::move(lines)}};
  return base::json_text(out, 2) + "\n";
}

base::Result<ScaleReport> parse_scale_report(std::string_view text) {
  const json parsed = base::parse_json(text);
  if (!parsed.is_object() || !parsed.contains("rows") || !parsed["rows"].is_array())
    return base::Error(base::Code::kCorrupt, "scale.json is no report of a sweep");
  if (optional_of<int64_t>(parsed, "format_version").value_or(0) != 1) {
    return base::Error(base::Code::kUnsupported,
                       "scale.json has another format than 1; use the shardrun that wrote it");
  }
  ScaleReport report{text_of(parsed, "name"), text_of(parsed, "scaling"), text_of(parsed, "id"), {}};
  for (const json& row : parsed["rows"]) {
    if (!row.is_object()) continue;
    ScaleLine line = parse_line(row);
    if (line.refusal.empty() && !line.batch.is_possible())
      return base::Error(base::Code::kCorrupt,
                         fmt::format("scale.json: row of {} nodes has no batch", line.nodes));
    report.lines.push_back(std::move(line));
  }
  return report;
}

}  // namespace shardrun::launcher
