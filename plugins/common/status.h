// Status: what went wrong inside a plugin, as the C table reports it: a SHARDRUN_COMM_* code, one line, and the ranks
// that the line is about.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plugins/abi/comm_v1.h"

namespace shardrun::common {

struct [[nodiscard]] Status {
  int32_t code = SHARDRUN_COMM_OK;
  std::string text;
  std::vector<uint32_t> ranks;  // those that did not answer or are lost; empty: none in particular

  bool ok() const { return code == SHARDRUN_COMM_OK; }
};

}  // namespace shardrun::common
