// The runs of a sweep: every combination of values, or one for each line of a list, as assignments of --set.
//
// Thread rule: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace shardrun::launcher {

// What --set gets for one run: "optimizer.learning_rate=1e-4", …
using Assignments = std::vector<std::string>;

constexpr size_t kMostRuns = 1000;  // of one sweep

// Takes "key=value,value,…" of each axis and combines them all; the last axis changes fastest. Commas inside of quotes and brackets
// belong to a value. kInvalid says which axis has no values, or how many runs are too many.
base::Result<std::vector<Assignments>> parse_grid(const std::vector<std::string>& axes);

// Takes a run from each line: "key=value key=value", with blanks between them that are not inside of quotes or brackets. Empty lines
// and those that begin with # are left out. kInvalid, "file:line: what; mend".
base::Result<std::vector<Assignments>> parse_list(std::string_view text, const std::string& file);

// Refuses what the runs of one Slurm array share: kInvalid names the assignment. A number of nodes is not for sweeps either: that is
// `shardrun scale`.
base::Result<void> check_assignments(const std::vector<Assignments>& runs);

}  // namespace shardrun::launcher
