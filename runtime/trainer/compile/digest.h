// SHA-256 as libcrypto has it: what the entries of the kernel cache are named and checked with.
//
// Thread rule: pure.
#pragma once

#include <string>
#include <string_view>

namespace shardrun::compile {

// 64 lower-case hexadecimal digits.
std::string sha256_hex(std::string_view bytes);

}  // namespace shardrun::compile
