// The constants as a vector of logarithms, and what is known of each: for fitting them, for saying how sure a prediction is,
// and for learning from a measured run.
//
// Thread rule: pure functions.
#pragma once

#include <array>

#include "launcher/forecast/constants.h"

namespace shardrun::launcher {

inline constexpr int kKnobs = 12 + kStacks;
using Knobs = std::array<double, kKnobs>;

struct Knob {
  const char* name = "";
  double before = 1.0;   // what is known of it before any run is seen
  double spread = 0.0;   // how well: standard deviation of its logarithm
  double between = 0.0;  // that of what one publication has, around what all have
};

// The last kStacks of them are Constants::making.
const Knob& knob(int index);
Constants constants_of(const Knobs& logarithms);
Knobs knobs_of(const Constants& constants);

}  // namespace shardrun::launcher
