// Entry: one file of the kernel cache, a compiled kernel or a compiler's refusal to make it.
//
//   shardrun kernel 1
//   kind library                  or "failure": the payload is then the compiler's output
//   name attention_forward_bf16_64
//   milliseconds 1830             that compiling took
//   sha256 <64 hexadecimal digits of the payload>
//   bytes 41232                   of the payload, which follows the empty line and ends the file
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/base/result.h"

namespace shardrun::compile {

struct Entry {
  enum class Kind { kLibrary, kFailure } kind = Kind::kLibrary;
  std::string name;
  int64_t milliseconds = 0;
  std::string payload;
};

std::string to_bytes(const Entry& entry);
// kCorrupt for anything that to_bytes() does not write, a wrong checksum included.
base::Result<Entry> parse_entry(std::string_view bytes);

}  // namespace shardrun::compile
