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
  std::string machine;                 // its type; empty where nothing was left to it
  std::vector<std::string> filled_in;  // those overrides that follow from it

  // Whether the job gives `key` ("section.key") itself, in its file or by an override.
  bool says(const std::string& key) const;
};
// Errors: those of the spec, of finding the machine, and of instance_overrides(). What the machine filled in has the place
// where the job names it as its origin.
base::Result<LoadedSpec> load_spec(const std::string& path, const std::vector<std::string>& overrides);
// Does the same with the text of a spec; `name` stands for its file in messages.
base::Result<LoadedSpec> load_spec_text(const std::string& text, const std::string& name,
                                        const std::vector<std::string>& overrides);
// Returns "p5.48xlarge fills in resources.device=gpu, …"; empty where it filled in nothing.
std::string filled_in_text(const LoadedSpec& loaded);
// Loads what `submit` or `run` wrote, whose overrides are complete: no machine is looked up again.
base::Result<LoadedSpec> load_prepared_spec(const std::string& path,
                                            const std::vector<std::string>& overrides);

// Returns the machine that a job names, directly or through its cluster; nullopt for none, or one that the
// catalogue lacks.
base::Result<std::optional<Instance>> machine_of(const spec::JobSpec& spec);

}  // namespace shardrun::launcher
