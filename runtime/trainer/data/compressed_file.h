// Compressed files as their contents: gzip's and Zstandard's, by the commands that every machine has for them.
//
// Thread rule: free functions.
#pragma once

#include <string>
#include <string_view>

#include "runtime/base/io.h"
#include "runtime/base/result.h"

namespace shardrun::data {

// Returns the name that a file has without its compression: "a.jsonl" of "a.jsonl.gz"; the same name for one that has none.
std::string_view name_when_unpacked(std::string_view path);

// Unpacks the file into one without a name in `folder`, which is gone when it is closed. kNotFound where the command is not
// installed; kCorrupt with its own words for a damaged file; kIo.
base::Result<base::UniqueFd> unpack(const std::string& path, const std::string& folder);

}  // namespace shardrun::data
