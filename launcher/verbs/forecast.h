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
#include "launcher/forecast/search.h"
#include "launcher/verbs/verbs.h"

namespace shardrun::launcher {

struct ForecastLine {
  std::string machine;
  int64_t nodes = 0, accelerators = 0;
  int64_t global_batch = 0;  // sequences
  std::optional<Candidate> best;
  StepForecast step;                     // of the best
  std::optional<int64_t> planned_bytes;  // of a rank, by the built-in trainer's own plan
  double efficiency = 0.0;               // speed of a node, relative to the machine's first line
  std::optional<double> hours, dollars;  // to train --tokens
  int64_t combinations = 0;
  std::vector<std::string> reasons;  // of the choice; without one, why there is none
};

struct ForecastReport {
  std::string job, software;
  bool weak = false;
  bool fp8 = false;  // of the linear layers, beside bf16
  double tokens = 0.0;
  std::optional<StepForecast> written;  // the layout that the spec asks for, on the only machine
  std::vector<ForecastLine> lines;
};

// A rank of `instance` as one accelerator. Errors: kInvalid for a type without accelerators.
base::Result<Machine> machine_of(const Instance& instance);

// Errors: kInvalid for a machine, a stack or a number of nodes that nobody knows, and for a job without a [model].
base::Result<ForecastReport> forecast_job(const PlanOptions& options, const spec::JobSpec& spec);

// Whether a prediction is asked for: by an option, or by a job that names a machine with accelerators.
bool wants_forecast(const PlanOptions& options, const LoadedSpec& loaded);

// "full_shard over 8, tensor 1, micro-batch 2 x 1, checkpointing none"
std::string layout_text(const Layout& layout);
// The member `best` of a prediction, and those of a step (docs/formats.md).
std::string layout_json(const Layout& layout);
std::string phases_json(const StepForecast& step);

void print_forecast(const ForecastReport& report);
std::string forecast_json(const ForecastReport& report);
std::string forecast_svg(const ForecastReport& report);

}  // namespace shardrun::launcher
