// The planner's constants, fitted on published rows: damped Gauss-Newton over their logarithms, with a prior.
//
// The fit is deterministic: it has no random numbers and a fixed number of rounds.
//
// Thread rule: pure functions.
#pragma once

#include <string>
#include <vector>

#include "launcher/forecast/step.h"

namespace shardrun::tests {

// What the users of a stack could choose.
struct Offered {
  std::string shard_degrees;  // "any", "node or all", "one or all", "one"
  bool tensor = false, activation_offload = false;

  bool includes(const launcher::Layout& layout, int per_node) const;
};

struct Row {
  std::string id, source;
  launcher::Machine machine;
  launcher::ModelShape model;
  launcher::Layout layout;
  launcher::Traits traits;
  Offered offered;
  double rate = 0.0;  // tokens/s of one accelerator, as published
};

// Reads the rows of `path`. The machines and models that it lacks, and what stacks offered, stand in `tables_path`.
std::vector<Row> read_rows(const std::string& path, const std::string& tables_path);
double predicted_rate(const Row& row, const launcher::Constants& constants);
launcher::Constants fit(const std::vector<Row>& rows);
// Returns those of the constants that are fitted, in the order of names().
std::vector<double> values(const launcher::Constants& constants);
std::vector<const char*> names();

}  // namespace shardrun::tests
