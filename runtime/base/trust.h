// Trust: whether a path is one that only root and we can change.
//
// Thread rule: thread-safe.
#pragma once

#include <string>

#include "runtime/base/result.h"

namespace shardrun::base {

// Succeeds when `path`, which must exist, and every folder above it belong to root or to us and nobody else may
// write them; a folder above may be open to all if it has the sticky bit, as /tmp does. Links are followed.
// kRefused names the place and the mend.
Result<void> refuse_if_others_write(const std::string& path);

}  // namespace shardrun::base
