// The planner's constants, fitted on published runs: generalized least squares over their logarithms, with a prior.
//
// Rows of one publication are off together (launcher/forecast/certainty.h), so that two hundred rows of one count as one
// publication, and one whose rows nothing explains weighs less (Student's t of four degrees of freedom). The fit is
// deterministic: it has no random numbers and a fixed number of rounds.
//
// Thread rule: pure functions.
#pragma once

#include <string>
#include <vector>

#include "launcher/forecast/certainty.h"
#include "launcher/forecast/linear.h"
#include "tests/unit/forecast/published.h"

namespace shardrun::tests {

launcher::Run run_of(const Row& row);
double measured_rate(const Row& row);  // tokens/s of all its accelerators
double predicted_rate(const Row& row, const launcher::Constants& constants);

// Rows with their rates and slopes at some constants, from which fits without any one publication follow.
class Linearized {
 public:
  Linearized(const std::vector<Row>& rows, const launcher::Constants& at);
  // Returns the constants that all rows give, or all but those of `left_out`.
  launcher::Constants fit(const std::string& left_out = "") const;

 private:
  struct Block {  // of one publication
    std::string publication;
    std::vector<size_t> rows;
    launcher::Square covariance;
  };

  const std::vector<Row>* rows_;
  launcher::Knobs at_;
  std::vector<launcher::Slopes> slopes_;
  std::vector<Block> blocks_;
};

launcher::Constants fit(const std::vector<Row>& rows);

}  // namespace shardrun::tests
