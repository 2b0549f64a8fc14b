// Writes the page of `shardrun report`: one or several runs as one HTML file that needs no network and no server.
//
// Everything that is words is in the page itself, escaped; only the curves and the heat map of ranks are drawn by the page's
// one script (report.js), from data that it parses as JSON. The page's content security policy names that script and the
// style sheet by their SHA-256 and allows nothing else, so a name that tries to be code stays a name.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/view/metrics_log.h"
#include "launcher/view/timeline.h"
#include "runtime/record/run_record.h"

namespace shardrun::launcher {

struct ReportRun {
  record::RunRecord record;
  std::string status;  // as TimelineSources have it
  std::string directory;
  std::vector<TimelineEntry> timeline;
  TrainingCurve curve;
  std::vector<record::RankExit> exits;  // of its last attempt; ranks that left none are missing
  std::string spec;                     // job.toml as it was asked for
  std::vector<std::string> overrides;   // what --set changed in it: "optimizer.steps=50"; none is empty
  bool has_batch = true;                // whether the job counts sequences
  bool in_nats = true;                  // its losses: those of the built-in trainer
};

// A key of a job.toml with its value, as they stand in the text.
struct SpecEntry {
  std::string key;  // with the table in front: "optimizer.steps"
  std::string value;
};

// Returns the keys of a job.toml in their order. It reads lines, not TOML: a value over several lines is joined, and a text that is no
// TOML gives entries that are of no use but harm nothing.
std::vector<SpecEntry> spec_entries(const std::string& toml);

// Returns the page. `runs` is not empty; `made` says when and by what the page was written.
std::string report_page(const std::vector<ReportRun>& runs, const std::string& made);

}  // namespace shardrun::launcher
