// A sweep: the runs of one job with different values, its sweep.json, its table with the best run, and the picture of their curves.
//
// Thread rule: plain values, pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/view/metrics_log.h"
#include "runtime/base/result.h"

namespace shardrun::launcher {

struct SweepRun {
  std::vector<std::string> assignments;  // what makes it this run
  std::string run;                       // its directory; empty: it has not started
  std::string status = "queued";
  std::optional<int64_t> step;
  std::optional<double> loss, validation_loss;  // the newest of each
};

struct SweepReport {
  std::string name, id;  // the job; the Slurm array or "sweep-…"
  std::vector<SweepRun> runs;
};

// Returns the index of the run with the least validation loss, or with the least training loss where no run has a validation loss;
// nullopt when no run has either. Runs that failed do not count.
std::optional<int> best_run(const SweepReport& report);

// Returns the table for people; the best run is marked.
std::string sweep_table_text(const SweepReport& report);
// Returns all loss curves in one picture, `curves` in the order of the runs; empty when none has two steps. Losses of the built-in
// trainer are in nats.
std::string sweep_plot_svg(const SweepReport& report, const std::vector<TrainingCurve>& curves, bool in_nats);

std::string to_json(const SweepReport& report);
// kCorrupt says what is wrong.
base::Result<SweepReport> parse_sweep_report(std::string_view text);

}  // namespace shardrun::launcher
