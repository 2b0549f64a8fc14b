// What folders need that several machines share.
//
// Thread rule: free functions are thread-safe on different paths.
#pragma once

#include <string>
#include <string_view>

#include "runtime/base/io.h"
#include "runtime/base/result.h"

namespace shardrun::base {

// Makes a client of a network file system ask its server which names the folder has now. Until then it may go on trusting
// what it saw up to a minute ago, and not see what others have made or taken away since; opening a folder ends that trust.
void look_afresh(const std::string& folder);

// Replaces `path` as write_file_atomically does, by a file that grows in `stage`, a folder of the same file system: whoever
// takes that away first keeps the file from being replaced, in one step. kNotFound when the stage is gone; kIo.
Result<void> replace_from(const std::string& stage, const std::string& path, std::string_view bytes,
                          unsigned mode, Durability durability);

}  // namespace shardrun::base
