// What a run told of its training, line by line, as its figures: of a command program, or of a trainer that left no summary.
//
// Thread rule: pure function.
#pragma once

#include <optional>
#include <string_view>

#include "runtime/record/run_record.h"

namespace shardrun::record {

// Returns the figures of the steps in a metrics.jsonl (docs/formats.md): its first and last loss, the mean of its tokens a second,
// the percentiles of its steps' seconds, which follow from two lines' times where the program does not say them, and the newest
// validation and checkpoint. nullopt where no line tells of a step.
std::optional<TrainingMetrics> metrics_of_lines(std::string_view metrics);

}  // namespace shardrun::record
