// The planner's constants and how far publications are from each other in them, fitted on published runs.
//
// Constants: generalized least squares over the logarithms of rates, with a prior. Rows of one publication are off together
// (launcher/forecast/certainty.h), so that two hundred rows of one count as one publication, and one whose rows nothing explains
// weighs less (Student's t). Spreads: the likeliest ones, by the fixed point that MacKay gave (Bayesian Interpolation, 1992,
// section 4), with a prior of one publication. The fit is deterministic: it has no random numbers and a fixed number of rounds.
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

// What published rows give.
struct Fitted {
  launcher::Constants constants;
  launcher::Spreads spreads;
};

// Rows with their rates and slopes at some constants, from which fits without any one publication follow.
class Linearized {
 public:
  Linearized(const std::vector<Row>& rows, const launcher::Constants& at);
  // Returns what all rows give, or all but those of `left_out`, which then has a part in neither constants nor spreads.
  Fitted fit(const std::string& left_out = "") const;

 private:
  friend class Rounds;
  struct Block {  // of one publication
    std::string publication;
    bool on_trainium = false;
    std::vector<launcher::Run> runs;
    std::vector<launcher::Slopes> slopes;
    std::vector<double> misses;  // of the rates at the linearization
    launcher::Square likeness;
  };

  launcher::Knobs at_;
  std::vector<Block> blocks_;
};

Fitted fit(const std::vector<Row>& rows);

}  // namespace shardrun::tests
