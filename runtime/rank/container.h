// Container: runs a command program inside an image, with the container runtime that the node has.
//
// The supervisor stays outside: logs, heartbeats, signals and exit codes are those of any program, because these
// runtimes become the program or stand for it. What a rank needs from the node is mounted: the working directory,
// the run directory, the cache of compiled code and the folder of the PMIx server.
// Source: apptainer-exec(1), its appendix "Apptainer's environment variables"; ch-run(1).
//
// Thread rule: pure functions.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/contract/container_runtime.h"
#include "runtime/spec/job_spec.h"

namespace shardrun::rank {

struct ContainedProgram {
  std::vector<std::string> argv;
  // To be set beside `variables`, so that those win over the image's own, as they stand.
  std::map<std::string, std::string> environment;
};

// `variables` are what the rank was given and the program must see. `folders` are absolute and are mounted where
// they are; one that the runtime mounts itself, or that lies in another, is not mounted twice. kInvalid when a
// folder cannot be mounted.
base::Result<ContainedProgram> contain(const spec::JobSpec& spec, const contract::RuntimeProgram& runtime,
                                       const std::map<std::string, std::string>& variables,
                                       const std::string& working_directory,
                                       std::span<const std::string> folders);

}  // namespace shardrun::rank
