// Cubin: machine code of an NVIDIA GPU, an ELF file of machine 190.
//
// Thread rule: pure functions. Test: tests/unit/compile/cubin_test.cpp; fuzzed.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace shardrun::compile {

struct Cubin {
  std::string architecture;            // "sm_90"
  std::vector<std::string> functions;  // the global ones, by name
};

// kCorrupt for anything else, cut off or pointing outside itself.
base::Result<Cubin> parse_cubin(std::string_view bytes);

// kCorrupt unless it is one of that architecture with all those functions.
base::Result<void> check_cubin(std::string_view bytes, std::string_view architecture,
                               std::span<const std::string_view> functions);

}  // namespace shardrun::compile
