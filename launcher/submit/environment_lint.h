// Environment lint: finds variables that used to help on EFA and now do nothing, or harm.
//
// Source: doc/efa-env-var.md and src/platform-aws.cpp of aws-ofi-nccl, the EFA cheat sheet of
// awsome-distributed-training. With libfabric ≥ 1.18 and aws-ofi-nccl ≥ 1.7 nothing has to be set.
//
// Thread rule: pure functions.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace shardrun::launcher {

struct VariableFinding {
  enum class Kind { kObsolete, kHarmful };
  std::string name, value;
  Kind kind = Kind::kObsolete;
  std::string reason;  // what it does today, and what to do
};

// Returns the findings in the order of the variables' names.
std::vector<VariableFinding> lint_environment(const std::map<std::string, std::string>& environment);

// Returns what aws-ofi-nccl sets by itself, one setting a line, so that nobody else has to.
std::vector<std::string> set_by_the_plugin();

}  // namespace shardrun::launcher
