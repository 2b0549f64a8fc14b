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

// How a run of the sweep ended.
struct ScaleResult {
  std::string run;                          // its directory
  std::string status;                       // as in record.json
  std::optional<double> tokens_per_second;  // for the built-in trainer
  std::optional<double> seconds;            // duration of the last attempt
  // Speed of a node, as a share of that on the fewest nodes that were measured.
  std::optional<double> efficiency;
};

// Says why a number of nodes cannot be, and names at most two numbers that can.
struct ScaleRefusal {
  std::string why;
  std::vector<int64_t> nearest_nodes;  // ascending
};

struct ScaleLine {
  int64_t nodes = 0, ranks = 0;
  plan::BatchPlan batch;                   // zeros when refused
  int64_t micro_steps = 0;                 // micro-batches of a step that are not empty, over all ranks
  std::optional<int64_t> tokens_per_step;  // for the built-in trainer
  std::optional<ScaleRefusal> refusal;
  std::optional<ScaleResult> result;
};

struct ScaleReport {
  std::string name, scaling;
  std::string id;  // id of the Slurm array; empty if the job was only planned
  std::vector<ScaleLine> lines;
};

// Fills in the efficiencies of the lines that completed. Speed is tokens a second; for a command program it is
// global_batch over the seconds of the run, which is right when each run takes as many steps.
void measure_efficiency(ScaleReport& report);

// Returns the table for people.
std::string scale_table_text(const ScaleReport& report);
std::string to_json(const ScaleReport& report);
// kCorrupt says what is wrong.
base::Result<ScaleReport> parse_scale_report(std::string_view text);

}  // namespace shardrun::launcher
