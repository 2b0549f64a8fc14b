// Plans a job on several numbers of nodes: what its batch becomes on each, or why it cannot run there.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/plan/batch.h"
#include "launcher/plan/launch_plan.h"
#include "runtime/base/result.h"
#include "runtime/spec/job_spec.h"

namespace shardrun::launcher {

struct ScaleRow {
  int64_t nodes = 0;
  std::optional<record::LaunchPlan> plan;  // with the overrides that make the job this row; absent: refused
  std::string refusal;                     // "file:line:column: what; mend"
  NearestNodes nearest;                    // for a refused row
  // Returns how many micro-batches of a step, over all ranks, are not empty.
  int64_t micro_steps() const;
};

// Makes one row for each of `nodes`. `scaling` is given when it is not the spec's own: weak gives each node the
// work that a node has on the smallest of `nodes`, strong keeps the global batch that the job has there. Errors:
// kInvalid when the job cannot be solved on that smallest number, by which the others are then measured.
base::Result<std::vector<ScaleRow>> scale_table(const spec::JobSpec& spec, std::span<const int64_t> nodes,
                                                const PlanContext& context,
                                                std::optional<spec::Scaling> scaling);

// Parses "1,2,4" and "1-8,16" into ascending numbers without repetition. kInvalid says what is not a number of
// nodes.
base::Result<std::vector<int64_t>> parse_node_counts(std::string_view text);

}  // namespace shardrun::launcher
