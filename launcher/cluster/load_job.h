// A job.toml as the launcher sees it: with what the machine that it names decides filled in.
//
// Thread rule: free functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/cluster/catalogue.h"
#include "runtime/base/result.h"
#include "runtime/spec/job_spec.h"

namespace shardrun::launcher {

// A job spec whose gaps the machine that it names has filled.
struct LoadedSpec {
  spec::JobSpec spec;
  std::string text;
  // Those asked for, and those that follow from the machine that it names.
  std::vector<std::string> overrides;
};
base::Result<LoadedSpec> load_spec(const std::string& path, const std::vector<std::string>& overrides);
// Loads what `submit` or `run` wrote, whose overrides are complete: no machine is looked up again.
base::Result<LoadedSpec> load_prepared_spec(const std::string& path,
                                            const std::vector<std::string>& overrides);

// Returns the machine that a job names, directly or through its cluster; nullopt for none, or one that the
// catalogue lacks.
base::Result<std::optional<Instance>> machine_of(const spec::JobSpec& spec);

}  // namespace shardrun::launcher
