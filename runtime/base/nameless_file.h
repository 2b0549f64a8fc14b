// A file without a name: what it holds is gone once it is closed and unmapped, however its owner ends.
//
// Thread rule: thread-safe.
#pragma once

#include <string>

#include "runtime/base/io.h"

namespace shardrun::base {

// Returns a new one for reading and writing, which takes its room in `folder`. kIo names the folder.
Result<UniqueFd> make_nameless_file(const std::string& folder);

}  // namespace shardrun::base
