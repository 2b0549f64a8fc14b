// The queues of a Slurm cluster as sinfo reports them, in plain words: nodes that work, that wait, that
// come when needed.
//
// Thread rule: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace shardrun::launcher {

struct QueueState {
  std::string name;
  bool is_default = false, up = true;
  int busy = 0;       // allocated, mixed or completing
  int idle = 0;       // here and free
  int starting = 0;   // on their way
  int on_demand = 0;  // given back: they come when a job needs them
  int out = 0;        // down, drained, failing or leaving
  int cpus = 0;       // CPUs of a node
  int64_t memory_mib = 0;
  std::string time_limit;
};

// Returns the argv of the sinfo whose output parse_queues() reads.
std::vector<std::string> queues_command();
// Errors: kCorrupt, with the line that is not one of sinfo's.
base::Result<std::vector<QueueState>> parse_queues(std::string_view text);
std::string queues_table(const std::vector<QueueState>& queues);

}  // namespace shardrun::launcher
