// Data files in formats that are no text, told by how they begin: their bytes would train a model without a word.
//
// Thread rule: pure function.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "runtime/base/result.h"

namespace shardrun::record {

// How much of a file is looked at.
inline constexpr size_t kFormatBytes = 4096;

// kInvalid for a file of Parquet or Arrow, for a compressed one, for UTF-16, and for what has a zero byte among the first
// kFormatBytes, as binary formats do: raw token ids, arrays, archives. It says what makes text of it; `key` and `path` begin the
// message.
base::Result<void> refuse_foreign_format(std::span<const std::byte> bytes, const std::string& path,
                                         const std::string& key);

}  // namespace shardrun::record
