// The measured runs that `shardrun plan --measured` learns from: a run directory, or a line of anybody's log.
//
// Thread rule: free functions of the main thread.
#pragma once

#include <string>
#include <vector>

#include "launcher/cluster/load_job.h"
#include "launcher/forecast/certainty.h"
#include "launcher/foresight/forecast.h"

namespace shardrun::launcher {

// Each text is the directory of a run, or "tokens_per_second=…,nodes=…" with what else differs from the job: machine=…, and
// keys of the spec (sharding.strategy=…,batch.micro_batch=…). Errors: kInvalid, with the text, for what cannot be read, has no
// rate, or cannot be laid out on its nodes.
base::Result<MeasuredRun> measured_run(const PlanOptions& options, const LoadedSpec& loaded,
                                       const std::string& text);
// Those of --measured. A folder of runs stands for those in it that went well (earlier_runs.h).
std::vector<std::string> measured_texts(const PlanOptions& options);
base::Result<std::vector<MeasuredRun>> measured_runs(const PlanOptions& options, const LoadedSpec& loaded);

}  // namespace shardrun::launcher
