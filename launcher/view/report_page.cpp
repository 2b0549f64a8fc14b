#include "launcher/view/report_page.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "launcher/view/progress.h"
#include "launcher/view/report_assets.h"
#include "launcher/view/report_series.h"
#include "launcher/view/svg_chart.h"
#include "runtime/base/json_fields.h"
#include "runtime/base/text.h"

namespace shardrun::launcher {
namespace {

constexpr int kPointsOfALine = 4000;
constexpr int kMostRanks = 1 << 16;  // of a heat map

std::string element(const char* name, const std::string& text, const char* classes = "") {
  const std::string open = *classes == 0 ? name : fmt::format("{} class=\"{}\"", name, classes);
  return fmt::format("<{}>{}</{}>", open, xml_text(text), name);
}

// Returns a text with its lines kept.
std::string preformatted(const std::string& text) {
  std::string out;
  for (std::string_view left = text; !left.empty();)
    out += xml_text(std::string(base::take_line(left))) + "\n";
  return "<pre>" + out + "</pre>\n";
}

std::string label_of(const ReportRun& run) {
  return run.record.name + " " + run.record.id;
}

// A figure of a run as the table of facts shows it.
struct Fact {
  const char* name;
  std::string text;
};

std::string known(const std::optional<double>& value, const char* unit) {
  return value ? fmt::format("{:.5g}{}", *value, unit) : "";
}

std::vector<Fact> facts_of(const ReportRun& run) {
  const record::RunRecord& record = run.record;
  std::vector<Fact> facts = {
      {"Status", run.status},
      {"Ranks", fmt::format("{} on {}", record.world_size,
                            counted(static_cast<int64_t>(record.nodes.size()), "node"))},
      {"Attempts", std::to_string(record.attempts.size())}};
  if (run.has_batch)
    facts.push_back({"Batch", fmt::format("{} sequences: {} ranks × {} × {} micro-steps",
                                          record.batch.global_batch, record.batch.data_parallel,
                                          record.batch.micro_batch, record.batch.gradient_accumulation)});
  int64_t peak = 0;
  for (const auto& bytes : record.peak_memory_bytes) peak = std::max(peak, bytes.value_or(0));
  if (record.metrics) {
    const record::TrainingMetrics& metrics = *record.metrics;
    facts.push_back({"Steps", std::to_string(metrics.steps)});
    facts.push_back({"First loss", known(metrics.first_loss, "")});
    facts.push_back({"Final loss", known(metrics.final_loss, "")});
    facts.push_back({"Validation loss", known(metrics.validation_loss, "")});
    if (metrics.tokens_per_second > 0)
      facts.push_back({"Tokens a second", fmt::format("{:.0f}", metrics.tokens_per_second)});
    if (metrics.step_seconds_p50 > 0)
      facts.push_back({"Step, p50 and p99", fmt::format("{:.4g} s, {:.4g} s", metrics.step_seconds_p50,
                                                        metrics.step_seconds_p99)});
    if (!metrics.utilization.empty())
      facts.push_back({"Utilization", to_string(metrics.utilization.front())});
    if (metrics.planned.total() > 0) facts.push_back({"Memory planned", bytes_text(metrics.planned.total())});
    facts.push_back({"Checkpoint", metrics.checkpoint});
  }
  if (peak > 0) facts.push_back({"Memory measured", bytes_text(peak) + " at most on a rank"});
  if (record.predicted && record.predicted->step_seconds)
    facts.push_back({"Predicted", record::step_text(*record.predicted) + "; from " +
                                      record::basis_text(*record.predicted)});
  for (const auto& [library, version] : record.versions) facts.push_back({"", library + " " + version});
  facts.push_back({"Directory", run.directory});
  return facts;
}

// Rows of a table with one column for each run; those whose cells differ are marked.
class Comparison {
 public:
  explicit Comparison(size_t runs) : runs_(runs) {}

  void set(const std::string& row, size_t run, const std::string& text) {
    if (!cells_.contains(row)) order_.push_back(row);
    cells_.try_emplace(row, runs_).first->second[run] = text;
  }

  std::string html(const std::vector<ReportRun>& runs, bool only_differing) const {
    std::string body;
    for (const std::string& row : order_) {
      const std::vector<std::string>& cells = cells_.at(row);
      const bool differs =
          std::adjacent_find(cells.begin(), cells.end(), std::not_equal_to<>()) != cells.end();
      if (only_differing && !differs) continue;
      body += "<tr>" + element("th", row);
      for (const std::string& cell : cells) body += element("td", cell, differs ? "differs" : "");
      body += "</tr>\n";
    }
    if (body.empty()) return "";
    std::string head;
    if (runs_ > 1) {
      head = "<tr><th></th>";
      for (const ReportRun& run : runs) head += element("th", label_of(run));
      head += "</tr>\n";
    }
    return "<div class=\"wide\"><table>" + head + body + "</table></div>\n";
  }

 private:
  size_t runs_;
  std::vector<std::string> order_;
  std::map<std::string, std::vector<std::string>> cells_;
};

std::string facts_table(const std::vector<ReportRun>& runs) {
  Comparison table(runs.size());
  for (size_t i = 0; i < runs.size(); ++i) {
    std::string libraries;
    for (const Fact& fact : facts_of(runs[i])) {
      if (*fact.name != 0) {
        if (!fact.text.empty()) table.set(fact.name, i, fact.text);
      } else {
        libraries += (libraries.empty() ? "" : ", ") + fact.text;
      }
    }
    table.set("Libraries", i, libraries);
  }
  return table.html(runs, false);
}

std::string timeline_table(const ReportRun& run) {
  std::string rows;
  const double begin = run.timeline.empty() ? 0.0 : run.timeline.front().time;
  for (const TimelineEntry& entry : run.timeline) {
    rows += entry.mark == TimelineEntry::Mark::kFirstCause ? "<tr class=\"cause\">" : "<tr>";
    rows += element("td", fmt::format("{:.1f} s", entry.time - begin), "when") +
            element("td", std::to_string(entry.attempt)) + element("td", entry.text, "text") + "</tr>\n";
  }
  if (rows.empty()) return "";
  return "<div class=\"wide\"><table><tr><th>After</th><th>Attempt</th><th>What</th></tr>\n" + rows +
         "</table></div>\n";
}

std::string memory_table(const std::vector<ReportRun>& runs) {
  Comparison table(runs.size());
  for (size_t i = 0; i < runs.size(); ++i) {
    if (!runs[i].record.metrics) continue;
    const plan::MemoryPlan& plan = runs[i].record.metrics->planned;
    const std::array<std::pair<const char*, int64_t>, 12> parts = {
        {{"Master parameters", plan.masters},
         {"Copy to compute with", plan.compute_copy},
         {"Frozen parameters", plan.frozen},
         {"Gradients", plan.gradients},
         {"Moments of the optimizer", plan.moments},
         {"Gathered blocks", plan.gathered},
         {"Activations", plan.activations},
         {"Offloaded to the host", plan.offloaded},
         {"Workspace of kernels", plan.workspace},
         {"Communication", plan.communication},
         {"Copies for checkpoints", plan.saving},
         {"Programs and libraries", plan.process}}};
    for (const auto& [name, bytes] : parts) {
      if (bytes > 0) table.set(name, i, bytes_text(bytes));
    }
  }
  const std::string rows = table.html(runs, false);
  return rows.empty() ? "" : "<h2>Memory of a rank, as planned</h2>\n" + rows;
}

std::string spec_part(const std::vector<ReportRun>& runs) {
  if (runs.size() == 1) {
    std::string changes;
    for (const std::string& change : runs[0].overrides) changes += element("p", "--set " + change);
    return "<h2>Job</h2>\n" + changes + preformatted(runs[0].spec);
  }
  Comparison table(runs.size());
  for (size_t i = 0; i < runs.size(); ++i) {
    for (const SpecEntry& entry : spec_entries(runs[i].spec)) table.set(entry.key, i, entry.value);
    for (const std::string& change : runs[i].overrides) {
      const size_t equals = std::min(change.find('='), change.size() - 1);
      table.set(change.substr(0, equals), i, change.substr(equals + 1));
    }
  }
  const std::string differing = table.html(runs, true);
  return "<h2>Jobs, where they differ</h2>\n" +
         (differing.empty() ? "<p>They are the same.</p>\n" : differing);
}

struct ChartLine {
  int run = 0;
  bool dots = false;
  std::vector<int64_t> x;
  std::vector<double> y;
};
void fields(auto& visit, base::Is<ChartLine> auto& line) {
  visit("run", line.run);
  visit("dots", line.dots);
  visit("x", line.x);
  visit("y", line.y, base::significant(6));
}

struct ChartData {
  std::string title;
  std::vector<ChartLine> lines;
};
void fields(auto& visit, base::Is<ChartData> auto& chart) {
  visit("title", chart.title);
  visit("lines", chart.lines);
}

struct HeatRank {
  int rank = 0;
  std::string node, mark;
};
void fields(auto& visit, base::Is<HeatRank> auto& rank) {
  visit("rank", rank.rank);
  visit("node", rank.node);
  visit("mark", rank.mark);
}

struct HeatColumn {
  std::string title, unit;
  std::vector<std::optional<double>> values;  // by rank
};
void fields(auto& visit, base::Is<HeatColumn> auto& column) {
  visit("title", column.title);
  visit("unit", column.unit);
  visit("values", column.values, base::significant(6));
}

struct HeatMap {
  std::vector<HeatRank> ranks;
  std::vector<HeatColumn> columns;
};
void fields(auto& visit, base::Is<HeatMap> auto& map) {
  visit("ranks", map.ranks);
  visit("columns", map.columns);
}

struct PageData {
  std::vector<std::string> runs;
  std::vector<ChartData> charts;
  std::vector<HeatMap> heat;
};
void fields(auto& visit, base::Is<PageData> auto& page) {
  visit("runs", page.runs);
  visit("charts", page.charts);
  visit("heat", page.heat);
}

void add_line(ChartData& chart, int run, const Series& series, bool dots) {
  if (series.x.empty()) return;
  Series few = thinned(series, kPointsOfALine);
  chart.lines.push_back({run, dots, {few.x.begin(), few.x.end()}, std::move(few.y)});
}

std::vector<ChartData> charts_of(const std::vector<ReportRun>& runs) {
  struct Kind {
    const char* title;
    double StepPoint::*figure;
  };
  const bool in_nats =
      std::all_of(runs.begin(), runs.end(), [](const ReportRun& run) { return run.in_nats; });
  const Kind kinds[] = {
      {in_nats ? "Loss, nats a token; dots: validation" : "Loss; dots: validation", &StepPoint::loss},
      {"Tokens a second", &StepPoint::tokens_per_second},
      {"Seconds of a step", &StepPoint::step_seconds},
      {"Norm of the gradient", &StepPoint::grad_norm},
      {"Learning rate", &StepPoint::learning_rate}};
  std::vector<ChartData> charts;
  for (const Kind& kind : kinds) {
    ChartData chart{kind.title, {}};
    for (int run = 0; run < static_cast<int>(runs.size()); ++run) {
      add_line(chart, run, series_of(runs[run].curve.steps, kind.figure), false);
      if (kind.figure == &StepPoint::loss)
        add_line(chart, run, series_of(runs[run].curve.validations, kind.figure), true);
    }
    if (!chart.lines.empty()) charts.push_back(std::move(chart));
  }
  return charts;
}

// Returns what is known of each rank of the run's last attempt.
HeatMap heat_of(const ReportRun& run) {
  HeatMap map;
  const record::RunRecord& record = run.record;
  const int ranks = std::clamp(record.world_size, 0, kMostRanks),
            nodes = static_cast<int>(record.nodes.size());
  const int per_node = nodes > 0 ? std::max(1, ranks / nodes) : 1;
  std::vector<std::optional<int64_t>> bytes = record.peak_memory_bytes;
  bytes.resize(ranks);
  HeatColumn busy{"its own time in steps", "s", std::vector<std::optional<double>>(ranks)},
      waiting{"waiting for other ranks in steps", "%", busy.values};
  for (int rank = 0; rank < ranks; ++rank)
    map.ranks.push_back({rank, nodes > 0 ? record.nodes[std::min(rank / per_node, nodes - 1)] : "", ""});
  const auto known = [&](int rank) { return rank >= 0 && rank < ranks; };
  for (const record::RankExit& exit : run.exits) {
    if (!known(exit.global_rank)) continue;
    if (!exit.node.empty()) map.ranks[exit.global_rank].node = exit.node;
    if (!bytes[exit.global_rank] && exit.peak_memory_bytes > 0)
      bytes[exit.global_rank] = exit.peak_memory_bytes;
    const double spent = exit.steps_seconds.value_or(0.0), waited = exit.waiting_seconds.value_or(0.0);
    if (spent <= 0.0) continue;
    busy.values[exit.global_rank] = spent - waited;
    waiting.values[exit.global_rank] = 100.0 * waited / spent;
  }
  if (!record.attempts.empty()) {
    for (const record::StragglerNote& slow : record.attempts.back().stragglers) {
      if (known(slow.global_rank))
        map.ranks[slow.global_rank].mark =
            fmt::format("straggler: busy {:.3g} s a step where the median is {:.3g} s", slow.busy_seconds,
                        slow.median_seconds);
    }
    const auto& cause = record.attempts.back().first_cause;
    if (cause && cause->global_rank && known(*cause->global_rank))
      map.ranks[*cause->global_rank].mark = "first cause: " + cause->kind;
  }
  const bool large =
      std::any_of(bytes.begin(), bytes.end(), [](const auto& some) { return some.value_or(0) >= 1 << 30; });
  HeatColumn memory{"highest memory", large ? "GiB" : "MiB", {}};
  for (const auto& some : bytes)
    memory.values.push_back(some ? std::optional(static_cast<double>(*some) / (large ? 1 << 30 : 1 << 20))
                                 : std::nullopt);
  for (HeatColumn* column : {&busy, &waiting}) {
    if (std::any_of(column->values.begin(), column->values.end(),
                    [](const auto& some) { return some.has_value(); }))
      map.columns.push_back(std::move(*column));
  }
  map.columns.push_back(std::move(memory));
  return map;
}

std::string key_of(const std::vector<ReportRun>& runs) {
  if (runs.size() < 2) return "";
  std::string key = "<p class=\"key\">";
  for (size_t i = 0; i < runs.size(); ++i)
    key += fmt::format("<span><i class=\"c{} d{}\"></i>{}</span> ", i % 8, i / 8 % 4,  // as in report.js
                       xml_text(label_of(runs[i])));
  return key + "</p>\n";
}

// Returns how the run ended, on one line.
std::string verdict_of(const ReportRun& run) {
  const std::string status = record::status_name(run.record.status);
  return "<p>" + element("span", status, ("status " + status).c_str()) + " " +
         element("span", run.record.verdict) + "</p>\n";
}

std::string run_part(const ReportRun& run, size_t index) {
  std::string part = element("h2", "What happened to " + label_of(run)) + "\n" + timeline_table(run);
  if (run.record.world_size > 0) part += fmt::format("<h3>Ranks</h3>\n<div id=\"heat{}\"></div>\n", index);
  return part;
}

// JSON inside an element: nothing in it can end that element or begin a comment.
std::string for_script(std::string json) {
  std::string safe;
  safe.reserve(json.size());
  for (const char c : json) {
    if (c == '<' || c == '>' || c == '&') {
      safe += fmt::format("\\u{:04x}", static_cast<int>(c));
    } else {
      safe += c;
    }
  }
  return safe;
}

}  // namespace

std::vector<SpecEntry> spec_entries(const std::string& toml) {
  std::vector<SpecEntry> entries;
  std::string table;
  const auto trimmed = [](std::string_view text) {
    const size_t begin = text.find_first_not_of(" \t\r"), end = text.find_last_not_of(" \t\r");
    return std::string(begin == text.npos ? "" : text.substr(begin, end - begin + 1));
  };
  for (std::string_view left = toml; !left.empty();) {
    const std::string line = trimmed(base::take_line(left));
    if (line.empty() || line[0] == '#') continue;
    const size_t equals = line.find('=');
    const bool in_list =
        !entries.empty() && entries.back().value.starts_with('[') && !entries.back().value.ends_with(']');
    if (in_list) {
      entries.back().value += " " + line;
    } else if (line[0] == '[') {
      table = trimmed(line.substr(1, line.find(']') - 1)) + ".";
    } else if (equals != std::string::npos) {
      entries.push_back({table + trimmed(line.substr(0, equals)), trimmed(line.substr(equals + 1))});
    }
  }
  return entries;
}

std::string report_page(const std::vector<ReportRun>& runs, const std::string& made) {
  PageData data;
  data.charts = charts_of(runs);
  std::string title, verdicts, parts;
  for (size_t i = 0; i < runs.size(); ++i) {
    data.runs.push_back(label_of(runs[i]));
    data.heat.push_back(heat_of(runs[i]));
    title += (i == 0 ? "" : ", ") + data.runs.back();
    if (runs.size() > 1) verdicts += element("h3", data.runs.back());
    verdicts += verdict_of(runs[i]);
    parts += run_part(runs[i], i);
  }
  std::string charts;
  for (size_t i = 0; i < data.charts.size(); ++i)
    charts += fmt::format("<figure>{}<div class=\"host\" id=\"chart{}\"></div></figure>\n",
                          element("figcaption", data.charts[i].title), i);
  if (!charts.empty())
    charts =
        "<p class=\"soft\">Drag to zoom, double-click for the whole run; with the keyboard: + − 0 and the "
        "arrows.</p>\n" +
        key_of(runs) + "<div class=\"charts\">\n" + charts + "</div>\n";
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; base-uri 'none'; "
      "form-action 'none'; "
      "script-src 'sha256-{script_hash}'; style-src 'sha256-{style_hash}'\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n"
      "<style>{style}</style>\n</head>\n<body>\n<h1>{title}</h1>\n<p "
      "class=\"soft\">{made}</p>\n{verdicts}{charts}"
      "<h2>Facts</h2>\n{facts}{runs}{memory}{spec}"
      "<noscript><p>The curves and the heat map need the page's script.</p></noscript>\n"
      "<script type=\"application/json\" "
      "id=\"data\">{data}</script>\n<script>{script}</script>\n</body>\n</html>\n",
      fmt::arg("script_hash", kReportScriptHash), fmt::arg("style_hash", kReportStyleHash),
      fmt::arg("title", xml_text(title)), fmt::arg("style", kReportStyle), fmt::arg("made", xml_text(made)),
      fmt::arg("verdicts", verdicts), fmt::arg("charts", charts), fmt::arg("facts", facts_table(runs)),
      fmt::arg("runs", parts), fmt::arg("memory", memory_table(runs)), fmt::arg("spec", spec_part(runs)),
      fmt::arg("data", for_script(base::json_of(data, base::JsonStyle{-1, false, false}))),
      fmt::arg("script", kReportScript));
}

}  // namespace shardrun::launcher
