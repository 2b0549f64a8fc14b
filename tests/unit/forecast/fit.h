// The planner's constants, fitted on published rows: damped Gauss-Newton over their logarithms, with a prior.
//
// Deterministic: no random numbers, a fixed number of rounds. Thread rule: pure functions.
#pragma once

#include <string>
#include <vector>

#include "launcher/forecast/step.h"

namespace shardrun::tests {

struct Row {
  std::string id;
  launcher::Machine machine;
  launcher::ModelShape model;
  launcher::Layout layout;
  launcher::Traits traits;
  double rate = 0.0;  // tokens/s of one accelerator, published
};

std::vector<Row> read_rows(const std::string& path);
double predicted_rate(const Row& row, const launcher::Constants& constants);
// Fitted on all rows but the one at `left_out`; on all of them when it is no index.
launcher::Constants fit(const std::vector<Row>& rows, size_t left_out = static_cast<size_t>(-1));
// All constants in the order of names().
std::vector<double> values(const launcher::Constants& constants);
std::vector<const char*> names();

}  // namespace shardrun::tests
