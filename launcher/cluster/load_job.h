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
  std::vector<std::string> overrides;  // those asked for, and those that follow from the machine it names
};
base::Result<LoadedSpec> load_spec(const std::string& path, const std::vector<std::string>& overrides);
// What `submit` or `run` wrote, whose overrides are complete: no machine is looked up again.
base::Result<LoadedSpec> load_prepared_spec(const std::string& path,
                                            const std::vector<std::string>& overrides);

// The machine that a job names, directly or through its cluster; none, or one that the catalogue lacks: nullopt.
base::Result<std::optional<Instance>> machine_of(const spec::JobSpec& spec);

}  // namespace shardrun::launcher
