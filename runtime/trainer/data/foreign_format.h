// Data files in formats that are no text, told by how they begin: their bytes would train a model without a word.
//
// Thread rule: free function.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "runtime/base/result.h"

namespace shardrun::data {

// kInvalid for a file of Parquet or Arrow, and for a compressed one, with what makes text of it; `key` and `path` begin the message.
base::Result<void> refuse_foreign_format(std::span<const std::byte> bytes, const std::string& path,
                                         const std::string& key);

}  // namespace shardrun::data
