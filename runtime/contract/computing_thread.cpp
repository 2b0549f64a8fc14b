#include "runtime/contract/computing_thread.h"

#include "plugins/common/cpu_slices.h"

namespace shardrun::contract {

void ask_for_long_slices() {
  common::ask_for_slices(std::chrono::milliseconds(20));
}

}  // namespace shardrun::contract
