// The constants as a vector of logarithms, and what is known of each: for fitting them, for saying how sure a prediction is,
// and for learning from a measured run.
//
// Thread rule: pure functions.
#pragma once

#include <array>

#include "launcher/forecast/constants.h"

namespace shardrun::launcher {

inline constexpr int kCommonKnobs = 12;
inline constexpr int kKnobs = kCommonKnobs + kStacks;
using Knobs = std::array<double, kKnobs>;

struct Knob {
  const char* name = "";
  double before = 1.0;  // what is known of it before any run is seen
  double spread = 0.0;  // how well: standard deviation of its logarithm
};

// The last kStacks of them are Constants::making.
const Knob& knob(int index);
Constants constants_of(const Knobs& logarithms);
Knobs knobs_of(const Constants& constants);

// How far publications are from each other, as standard deviations of logarithms.
struct Spreads {
  Knobs between{};           // of what one publication has of each constant, around what all have
  double publication = 0.0;  // of all its rates
  double alike = 0.0;        // of what runs that are alike share beyond that
  double alike_on_trainium = 0.0;
  double noise = 0.0;  // of one rate
};

// What is taken for them before any run is seen: that publications differ in a constant as much as it is unknown.
Spreads spreads_before();
const Spreads& fitted_spreads();

}  // namespace shardrun::launcher
