// What `shardrun plan` predicts of a job on machines of the catalogue: the best layout for each number of nodes, its
// step, its memory and its price (launcher/forecast).
//
// Thread rule: free functions of the main thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/cluster/catalogue.h"
#include "launcher/forecast/certainty.h"
#include "launcher/forecast/failures.h"
#include "launcher/forecast/memory.h"
#include "launcher/forecast/search.h"
#include "launcher/runs/common.h"

namespace shardrun::launcher {

// The options of `shardrun plan`.
struct PlanOptions {
  SpecOptions spec;
  std::string machines;  // types of the catalogue, "p4d.24xlarge,p5.48xlarge"; empty: the job's own
  std::string software;  // a stack that predictions know; empty: the built-in trainer, as fast as "fsdp"
  std::string nodes;     // "16,32,64", "1-8"; empty: the job's own
  std::string scaling;   // "strong", "weak", or the spec's own
  std::string plot;      // file of an SVG
  std::vector<std::string> measured;  // directories of runs, or lines of logs
  std::string machine_file;           // of types beside the catalogue, in its grammar
  std::string prices;                 // file of dollars an hour, by type
  double tokens = 0.0;                // to train, for hours and dollars
  double dollars_per_hour = 0.0;      // of a node
};

// A step, corrected by what was measured, and how sure it is.
struct Sure {
  StepForecast step;
  Estimate estimate;
};

// The layout that the spec asks for, on the only machine.
struct Written {
  Layout layout;
  std::optional<Sure> sure;  // where it fits
  // Of a rank. Active: what tensors and libraries take. Reserved: with what a caching allocator loses. The built-in trainer's
  // plan loses nothing, so both are one.
  double active_bytes = 0.0, reserved_bytes = 0.0, usable_bytes = 0.0;
  Interval reserved_between;       // four of five runs
  std::vector<std::string> mends;  // where it does not fit: what would
};

struct ForecastLine {
  std::string machine;
  int64_t nodes = 0, accelerators = 0;
  int64_t global_batch = 0;  // sequences
  std::optional<Candidate> best;
  StepForecast step;                     // of the best, corrected by what was measured
  Estimate estimate;                     // of its rate
  std::optional<int64_t> planned_bytes;  // of a rank, by the built-in trainer's own plan
  // Returns what a rank of the best layout holds, by that plan or else by the estimate; and what four of five hold.
  double held_bytes() const { return planned_bytes ? static_cast<double>(*planned_bytes) : best->bytes; }
  Interval held_between() const { return times(planned_bytes ? kHeldOfPlan : kHeldOfEstimate, held_bytes()); }
  double efficiency = 0.0;            // speed of a node, relative to the machine's first line
  double efficiency_deviation = 0.0;  // of its logarithm
  Saving saving;
  std::optional<double> hours, dollars;  // to train --tokens, with what saving and failures cost
  int64_t combinations = 0;
  std::vector<std::string> reasons;  // of the choice; without one, why there is none
  std::vector<std::string> beyond;   // what of it no published run shows
};

struct ForecastReport {
  std::string job, software;
  bool weak = false;
  bool fp8 = false;  // of the linear layers, beside bf16
  double tokens = 0.0;
  int64_t measured = 0;            // runs that it learned from
  std::optional<Written> written;  // where one machine is asked for, and no other number of nodes
  std::vector<ForecastLine> lines;
};

Run run_of(const Question& question, const Layout& layout);
Sure foresee(const Question& question, const Layout& layout, const Belief& belief);

// A rank of `instance` as one accelerator. Errors: kInvalid for a type without accelerators.
base::Result<Machine> machine_of(const Instance& instance);

// Errors: kInvalid for a machine, a stack or a number of nodes that nobody knows, for a job without a [model], and, of the
// built-in trainer, for a job that trains on CPUs and for accelerators that it does not compute on.
base::Result<ForecastReport> forecast_job(const PlanOptions& options, const LoadedSpec& loaded);

// Whether a prediction is asked for: by an option, or by a job that trains on the accelerators of the machine that it names.
bool wants_forecast(const PlanOptions& options, const LoadedSpec& loaded);

// "full_shard over 8, tensor 1, micro-batch 2 x 1, checkpointing none"
std::string layout_text(const Layout& layout);
// "36.0 to 56.4", in GB.
std::string gigabytes_text(const Interval& bytes);

void print_forecast(const ForecastReport& report);
std::string to_json(const ForecastReport& report);
std::string forecast_svg(const ForecastReport& report);

}  // namespace shardrun::launcher
