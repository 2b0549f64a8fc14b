// The folder of compiled code: made for one user, and refused when others could put code into it.
//
// Thread rule: free functions that look at and make folders.
#pragma once

#include <string>

#include "runtime/base/result.h"
#include "runtime/spec/job_spec.h"

namespace shardrun::launcher {

// Makes the folder with mode 0700 where it is missing. kRefused, "origin: what; mend", when it belongs to somebody
// else or others can write into it; kIo when it cannot be made.
base::Result<void> prepare_cache(const spec::JobSpec& spec, const std::string& folder);

}  // namespace shardrun::launcher
