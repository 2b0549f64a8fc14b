// results.json: what came out of a run, in the fields that readers of the Neuron BERT tutorial know:
// {"results":{"parameters":{…},"metrics":[{MetricName,MeasuredValue,Units,Timestamp,AdditionalData}]}}.
//
// Thread rule: pure functions.
#pragma once

#include <string>

#include "runtime/record/run_record.h"
#include "runtime/spec/job_spec.h"

namespace shardrun::record {

// `job` is the run's spec, whose model, data and optimizer are told where the built-in trainer ran; null: nobody has it.
std::string to_results_json(const RunRecord& record, const spec::JobSpec* job);

}  // namespace shardrun::record
