// What a command program told of its training, line by line, as the figures of a run.
//
// Thread rule: pure function.
#pragma once

#include <optional>
#include <string_view>

#include "runtime/record/run_record.h"

namespace shardrun::record {

// Returns the figures of the steps in a metrics.jsonl that a command program wrote (docs/formats.md): its first and last loss,
// the mean of its tokens a second, and the percentiles of its steps' seconds, which follow from two lines' times where the
// program does not say them. nullopt where no line tells of a step.
std::optional<TrainingMetrics> metrics_of_command(std::string_view metrics);

}  // namespace shardrun::record
