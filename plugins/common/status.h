// Status: what went wrong inside a plugin, as the C table reports it: a SHARDRUN_COMM_* code and one line.
#pragma once

#include <cstdint>
#include <string>

#include "plugins/abi/comm_v1.h"

namespace shardrun::common {

struct [[nodiscard]] Status {
  int32_t code = SHARDRUN_COMM_OK;
  std::string text;

  bool ok() const { return code == SHARDRUN_COMM_OK; }
};

}  // namespace shardrun::common
