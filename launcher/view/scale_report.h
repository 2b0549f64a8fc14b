// A job on several numbers of nodes, planned and perhaps measured: `shardrun scale`'s table and its scale.json.
//
// Thread rule: plain values, pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/plan/batch_plan.h"

namespace shardrun::launcher {

// What a run of the sweep came to.
struct ScaleResult {
  std::string run;                          // its directory
  std::string status;                       // as in record.json
  std::optional<double> tokens_per_second;  // of the built-in trainer
  std::optional<double> seconds;            // of the last attempt
  std::optional<double>
      efficiency;  // speed of a node, as a share of that on the fewest nodes that were measured
};

struct ScaleLine {
  int64_t nodes = 0, ranks = 0;
  plan::BatchPlan batch;                         // zeros when refused
  int64_t micro_steps = 0;                       // micro-batches of a step that are not empty, over all ranks
  std::optional<int64_t> tokens_per_step;        // of the built-in trainer
  std::string refusal;                           // empty: it can run
  int64_t nearest_below = 0, nearest_above = 0;  // numbers of nodes, of a refusal
  std::optional<ScaleResult> result;
};

struct ScaleReport {
  std::string name, scaling;
  std::string id;  // of the Slurm array; empty: only planned
  std::vector<ScaleLine> lines;
};

// Fills in the efficiencies of the lines that completed. Speed is tokens a second; of a command program it is
// global_batch over the seconds of the run, which is right when each run takes as many steps.
void measure_efficiency(ScaleReport& report);

// For people.
std::string scale_table_text(const ScaleReport& report);
std::string to_json(const ScaleReport& report);
// kCorrupt with what is wrong.
base::Result<ScaleReport> parse_scale_report(std::string_view text);

}  // namespace shardrun::launcher
