// How sure a prediction is, and what measured runs change about it.
//
// The logarithm of a run's rate is what the fitted constants give, and is off by what one publication (or one user's cluster and
// software) does otherwise than the others, which is an offset of each common constant and so moves runs that depend on the
// same constants together; by what runs that are alike share beyond that; and by noise. All of them together have Student's t
// distribution, for one publication in ten is further off than a normal one would be. How far publications are from each
// other is fitted on them as the constants are (knobs.h); the test of the fit scores both on publications that had no part
// in either.
// Method: best linear unbiased prediction, as in kriging (Rasmussen and Williams, Gaussian Processes, 2.7 and 9.9).
//
// Thread rule: plain values, pure functions; one call costs some thirty forecasts for each run.
#pragma once

#include <string>
#include <vector>

#include "launcher/forecast/knobs.h"
#include "launcher/forecast/linear.h"
#include "launcher/forecast/step.h"

namespace shardrun::launcher {

// What runs on what.
struct Run {
  Machine machine;
  ModelShape model;
  Layout layout;
  Traits traits;
};

struct MeasuredRun {
  Run run;
  double tokens_per_second = 0.0;  // of all ranks
};

// The logarithm of a predicted rate, in tokens/s, and how it changes with the logarithm of each constant.
struct Slopes {
  double rate = 0.0;
  Knobs slopes{};
};

Slopes slopes_of(const Run& run, const Constants& constants);

inline constexpr double kFreedom = 4.0;  // degrees of it, of Student's distribution of a publication's rates

// Returns how alike two runs are: 1 for the same, and towards 0 the further their sizes and layouts are apart.
double likeness(const Run& a, const Run& b);
// The spread of what runs like it share.
double alike_spread(const Run& run, const Spreads& spreads);
// Returns the covariance of the logarithms of two runs' rates in one publication, without the noise of each. `alike`: of what they
// share as runs that are alike.
double covariance(const Slopes& of_a, const Slopes& of_b, double alike, const Spreads& spreads);

// An interval that holds four of five rates, as factors of the prediction, which is 1.
struct Interval {
  double low = 1.0, high = 1.0;
};

struct Estimate {
  double factor = 1.0;        // on the rate that the constants give, by what was measured on runs like it
  double deviation = 0.0;     // of the normal distribution of the rate's logarithm that has the same interval
  Interval interval() const;  // around the corrected rate
};

// What is believed of one user's runs: the published constants, moved by what was measured there.
class Belief {
 public:
  Belief(const Constants& published, std::vector<MeasuredRun> measured,
         const Spreads& spreads = fitted_spreads());

  // The constants that are most likely there: those to search with.
  const Constants& constants() const { return constants_; }
  // `run` is predicted with constants().
  Estimate estimate(const Run& run) const;
  // Returns the deviation of the logarithm of two runs' rates over each other; less than that of either, because both lean on
  // the same constants.
  double ratio_deviation(const Run& a, const Run& b) const;

 private:
  double shared(const Run& a, const Slopes& of_a, const Run& b, const Slopes& of_b) const;
  double left_of(const Run& a, const Slopes& of_a, const Run& b, const Slopes& of_b) const;
  std::vector<double> shared_with(const Run& run, const Slopes& slopes) const;

  Constants published_, constants_;
  Spreads spreads_;
  std::vector<MeasuredRun> measured_;
  std::vector<Slopes> slopes_;   // of the measured ones
  Square lower_;                 // factor of their covariance
  std::vector<double> weights_;  // inverse covariance · misses
  double heavy_ = 1.0;           // by how much intervals are wider than a normal distribution's
};

// A run on a calibrated machine, and by how much its rate was beyond what was replayed for it.
struct Miss {
  Run run;
  double logarithm = 0.0;  // of measured over replayed rate
};

// Returns what is believed of a rate that was replayed for `run` on a calibrated machine, where these runs were measured on it
// since. What they have in common with `run` counts: a machine that was slower each time, and the more, the more alike they are.
Estimate estimate_replayed(const Run& run, const std::vector<Miss>& misses);

// Says in words what of `run` no published run shows: empty where intervals rest on runs like it.
std::vector<std::string> beyond_published(const Run& run);

}  // namespace shardrun::launcher
