// What the plugin does for a task on its node: the variables and the CPUs that a rank of `shardrun run` would get.
//
// It runs in the process that becomes the task, as its user, between fork and exec. Thread rule: free functions; they
// read files, and nothing of this process's own environment, which is the daemon's.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "runtime/base/result.h"
#include "runtime/contract/rank_env.h"
#include "runtime/rank/binding.h"

namespace shardrun::spank {

// What Slurm knows of the step and does not put into a variable.
struct Step {
  uint32_t job = 0, step = 0, restarts = 0;
  std::string working_directory;  // absolute
};

struct Task {
  std::map<std::string, std::string> variables;
  rank::Binding binding;
};

// `spec` is an absolute path and `environment` the task's. Errors: kInvalid for a spec that is not as it was when it was checked,
// or a step of another size than the job's, which rank 0 tells for all others, whose message is empty; kNotFound for a secret
// whose source is not here, kIo for a port that somebody holds.
base::Result<Task> prepare_task(const std::string& spec, const Step& step,
                                const contract::EnvironmentLookup& environment);

// Returns the first host of a Slurm node list: "n[03-04,7],m1" → "n03".
std::string first_host(std::string_view list);

}  // namespace shardrun::spank
