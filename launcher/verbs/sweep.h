// A sweep as verbs see it: found by its folder or its id, looked up, shown.
//
// Thread rule: free functions of the main thread.
#pragma once

#include <optional>
#include <string>

#include "launcher/runs/common.h"

namespace shardrun::launcher {

// Returns the folder of the sweep that `name` means: the folder itself, or its id below the runs directory.
std::optional<std::string> find_sweep(const std::string& name, const CommonOptions& common);

// Looks all its runs up, prints them as one table with the best, and writes sweep.json and sweep.svg anew. Returns the exit code: 0
// unless a run failed.
base::Result<int> show_sweep(const std::string& folder, const CommonOptions& common);

}  // namespace shardrun::launcher
