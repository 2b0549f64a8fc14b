// Trust: whether a path is one that only root and we can change, so that what was checked there is what is used later.
//
// A site whose shared trees belong to somebody else names folders that it vouches for in SHARDRUN_TRUSTED_FOLDERS, absolute
// and with ':' between them: such a folder and those above it are taken as they are, and what is below is checked.
//
// Thread rule: thread-safe.
#pragma once

#include <string>

#include "runtime/base/result.h"

namespace shardrun::base {

inline constexpr const char* kTrustedFolders = "SHARDRUN_TRUSTED_FOLDERS";

// Succeeds when `path`, which must exist, and every folder above it belong to root or to us and nobody else may
// write them; a folder above may be open to all if it has the sticky bit, as /tmp does. Links are followed. The group that a
// user has for himself is nobody else.
// kRefused names the place, its owner and the mend.
Result<void> refuse_if_others_write(const std::string& path);

// Does the same for a path that is about to be made: looks at the nearest folder above it that exists.
Result<void> refuse_if_others_make(const std::string& path);

}  // namespace shardrun::base
