// Container: a command program inside of an image, started by the runtime that the node has.
//
// The supervisor stays outside: logs, heartbeats, signals and exit codes are those of any program, for the runtimes here
// become the program or stand for it. What a rank needs from the node is mounted: the working directory, the run
// directory, the cache of compiled code and the folder of the PMIx server.
// Source: apptainer-exec(1), its appendix "Apptainer's environment variables"; ch-run(1).
//
// Thread rule: pure functions.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/spec/job_spec.h"

namespace shardrun::rank {

struct ContainedProgram {
  std::vector<std::string> argv;
  std::map<std::string, std::string>
      environment;  // to set beside `variables`, so that they win over the image's own
};

// `variables`: what the rank was given and the program must see. `folders`: absolute, to be mounted where they are;
// those that the runtime mounts itself, or that lie in one another, are mounted once. kInvalid when one cannot be.
base::Result<ContainedProgram> contain(const spec::JobSpec& spec, spec::ContainerRuntime runtime,
                                       const std::map<std::string, std::string>& variables,
                                       const std::string& working_directory,
                                       std::span<const std::string> folders);

}  // namespace shardrun::rank
