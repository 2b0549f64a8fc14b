// What in the words of a command program is most likely not meant so: a launcher inside of every rank, and what only a shell
// would understand.
//
// Thread rule: pure function.
#pragma once

#include <string>
#include <vector>

#include "runtime/spec/job_spec.h"

namespace shardrun::launcher {

// Returns warnings, each "file:line:column: what; mend". At most one about launchers and one about shells.
std::vector<std::string> lint_command(const spec::JobSpec& spec);

}  // namespace shardrun::launcher
