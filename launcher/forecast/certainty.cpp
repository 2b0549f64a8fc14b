#include "launcher/forecast/certainty.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace shardrun::launcher {
namespace {

// Standard deviations of the logarithms of rates that were replayed on a calibrated machine: as a whole, of runs that are alike,
// and of one run. Of 83 runs behind ten calibrations (tests/cluster/forecast_bench) 0.064 is common to a calibration and 0.114
// is not; runs on twice the nodes differ by 0.104.
constexpr double kReplayed = 0.06, kReplayedAlike = 0.08, kReplayedNoise = 0.05;
constexpr double kFourOfFive = 1.2816;  // deviations on each side that hold 80 % of a normal distribution

// What published runs reach to, and what each doubling beyond it may add.
constexpr int64_t kMostAccelerators = 2048, kMostTokens = 65536;
constexpr double kMostParameters = 405e9;
constexpr double kBeyond = 0.04;
constexpr double kUnknownMachine = 0.2, kUnknownExperts = 0.2, kUnknownSchedule = 0.05, kUnknownStack = 0.1;

double doublings(double value, double most) {
  return std::max(0.0, std::log2(value / most));
}

double accelerators_of(const Run& run) {
  return static_cast<double>(run.layout.nodes * run.machine.per_node);
}

double extrapolation_variance(const Run& run) {
  const double beyond = doublings(accelerators_of(run), kMostAccelerators) +
                        doublings(run.layout.sequence_length, kMostTokens) +
                        doublings(whole_model(run.model, run.layout).parameters(), kMostParameters);
  const double machine = run.machine.published ? 0.0 : kUnknownMachine;
  const double experts = run.layout.given.experts > 1 ? kUnknownExperts : 0.0;
  const double schedule = run.layout.given.zero_bubble ? kUnknownSchedule : 0.0;
  const double stack = run.traits.published ? 0.0 : kUnknownStack;
  return kBeyond * kBeyond * beyond * beyond + machine * machine + experts * experts + schedule * schedule +
         stack * stack;
}

// Distance of two runs: 1 for eight times the nodes, four times the sequence or the parameters, another precision.
double distance(const Run& a, const Run& b) {
  const auto ratio = [](double x, double y) { return std::abs(std::log2(x / y)); };
  const Layout &l = a.layout, &m = b.layout;
  double sum = ratio(static_cast<double>(l.nodes), static_cast<double>(m.nodes)) / 3.0;
  sum += ratio(l.sequence_length, m.sequence_length) / 2.0;
  sum += ratio(a.model.parameters(), b.model.parameters()) / 2.0;
  sum += ratio(l.tensor_parallel, m.tensor_parallel) / 1.5;
  sum += ratio(l.given.pipeline, m.given.pipeline) / 1.5;
  sum += ratio(static_cast<double>(l.micro_batch * l.accumulation),
               static_cast<double>(m.micro_batch * m.accumulation)) /
         2.0;
  sum += std::abs(static_cast<int>(l.checkpointing) - static_cast<int>(m.checkpointing)) / 1.5;
  sum += l.fp8 != m.fp8 ? 1.0 : 0.0;
  sum += a.machine.generation != b.machine.generation ? 3.0 : 0.0;
  return sum;
}

// Returns how many standard deviations on each side hold 80 % of Student's distribution (Abramowitz and Stegun 26.7.5).
double four_of_five(double freedom) {
  const double z = kFourOfFive, z2 = z * z;
  const double first = (z2 + 1.0) / 4.0, second = ((5.0 * z2 + 16.0) * z2 + 3.0) / 96.0;
  const double third = (((3.0 * z2 + 19.0) * z2 + 17.0) * z2 - 15.0) / 384.0;
  return z * (1.0 + (first + (second + third / freedom) / freedom) / freedom);
}

}  // namespace

Slopes slopes_of(const Run& run, const Constants& constants) {
  constexpr double kStep = 1e-4;
  const auto rate = [&](const Knobs& at) {
    const StepForecast step = forecast_step(run.machine, run.model, run.layout, run.traits, constants_of(at));
    return std::log(step.tokens_per_second());
  };
  Knobs at = knobs_of(constants);
  Slopes found;
  found.rate = rate(at);
  for (size_t i = 0; i < at.size(); ++i) {
    at[i] += kStep;
    found.slopes[i] = (rate(at) - found.rate) / kStep;
    at[i] -= kStep;
  }
  return found;
}

double likeness(const Run& a, const Run& b) {
  constexpr double kReach = 2.0;  // distance over which it falls to 1/e
  return std::exp(-distance(a, b) / kReach);
}

double alike_spread(const Run& run, const Spreads& spreads) {
  return run.machine.generation == Generation::kTrainium ? spreads.alike_on_trainium : spreads.alike;
}

double covariance(const Slopes& of_a, const Slopes& of_b, double alike, const Spreads& spreads) {
  double sum = spreads.publication * spreads.publication + alike;
  for (size_t i = 0; i < kKnobs; ++i)
    sum += spreads.between[i] * spreads.between[i] * of_a.slopes[i] * of_b.slopes[i];
  return sum;
}

Interval Estimate::interval() const {
  return {std::exp(-kFourOfFive * deviation), std::exp(kFourOfFive * deviation)};
}

Belief::Belief(const Constants& published, std::vector<MeasuredRun> measured, const Spreads& spreads)
    : published_(published),
      constants_(published),
      spreads_(spreads),
      measured_(std::move(measured)),
      lower_(0) {
  const size_t n = measured_.size();
  Square together(n);
  std::vector<double> misses;
  for (size_t i = 0; i < n; ++i) {
    const Run& run = measured_[i].run;
    slopes_.push_back(slopes_of(run, published_));
    misses.push_back(std::log(measured_[i].tokens_per_second) - slopes_[i].rate);
    for (size_t j = 0; j <= i; ++j) {
      together.at(i, j) = shared(run, slopes_[i], measured_[j].run, slopes_[j]);
      together.at(j, i) = together.at(i, j);
    }
    together.at(i, i) += spreads_.noise * spreads_.noise + extrapolation_variance(run);
  }
  lower_ = lower_of(std::move(together));
  weights_ = solve(lower_, misses);
  // What is left of a t distribution when some of it is known is another one, wider the less it was as expected.
  double surprise = 0.0;
  for (size_t i = 0; i < n; ++i) surprise += misses[i] * weights_[i];
  const double freedom = kFreedom + static_cast<double>(n);
  heavy_ = four_of_five(freedom) / kFourOfFive * std::sqrt((kFreedom + surprise) / freedom);
  Knobs moved = knobs_of(published_);
  for (size_t k = 0; k < moved.size(); ++k) {
    const double between = spreads_.between[k];
    for (size_t i = 0; i < n; ++i) moved[k] += between * between * slopes_[i].slopes[k] * weights_[i];
  }
  constants_ = constants_of(moved);
}

double Belief::shared(const Run& a, const Slopes& of_a, const Run& b, const Slopes& of_b) const {
  const double alike = alike_spread(a, spreads_) * alike_spread(b, spreads_) * likeness(a, b);
  return covariance(of_a, of_b, alike, spreads_);
}

std::vector<double> Belief::shared_with(const Run& run, const Slopes& slopes) const {
  std::vector<double> with_run;
  for (size_t i = 0; i < measured_.size(); ++i)
    with_run.push_back(shared(run, slopes, measured_[i].run, slopes_[i]));
  return with_run;
}

// The covariance of two runs that is left when the measured ones are known.
double Belief::left_of(const Run& a, const Slopes& of_a, const Run& b, const Slopes& of_b) const {
  const std::vector<double> with_a = shared_with(a, of_a), known = solve(lower_, shared_with(b, of_b));
  double left = shared(a, of_a, b, of_b);
  for (size_t i = 0; i < known.size(); ++i) left -= with_a[i] * known[i];
  return left;
}

Estimate Belief::estimate(const Run& run) const {
  const Slopes own = slopes_of(run, published_);
  const std::vector<double> with_run = shared_with(run, own);
  double mean = own.rate;
  for (size_t i = 0; i < with_run.size(); ++i) mean += with_run[i] * weights_[i];
  const double variance = left_of(run, own, run, own) + extrapolation_variance(run);
  const StepForecast there = forecast_step(run.machine, run.model, run.layout, run.traits, constants_);
  const double noise = spreads_.noise * spreads_.noise;
  return {std::exp(mean) / there.tokens_per_second(), heavy_ * std::sqrt(std::max(variance, 0.0) + noise)};
}

double Belief::ratio_deviation(const Run& a, const Run& b) const {
  const Slopes of_a = slopes_of(a, published_), of_b = slopes_of(b, published_);
  const double variance =
      left_of(a, of_a, a, of_a) + left_of(b, of_b, b, of_b) - 2.0 * left_of(a, of_a, b, of_b);
  const double beyond = std::abs(extrapolation_variance(a) - extrapolation_variance(b));
  return heavy_ * std::sqrt(std::max(variance, 0.0) + beyond);
}

Estimate estimate_replayed(const Run& run, const std::vector<Miss>& misses) {
  const auto shared = [](const Run& a, const Run& b) {
    return kReplayed * kReplayed + kReplayedAlike * kReplayedAlike * std::exp(-distance(a, b));
  };
  Square together(misses.size());
  std::vector<double> logarithms, with_run;
  for (size_t i = 0; i < misses.size(); ++i) {
    for (size_t j = 0; j < misses.size(); ++j) together.at(i, j) = shared(misses[i].run, misses[j].run);
    together.at(i, i) += kReplayedNoise * kReplayedNoise;
    logarithms.push_back(misses[i].logarithm);
    with_run.push_back(shared(run, misses[i].run));
  }
  const Square lower = lower_of(std::move(together));
  const std::vector<double> weights = solve(lower, logarithms), known = solve(lower, with_run);
  double mean = 0.0, variance = shared(run, run) + kReplayedNoise * kReplayedNoise;
  for (size_t i = 0; i < misses.size(); ++i) {
    mean += with_run[i] * weights[i];
    variance -= with_run[i] * known[i];
  }
  return {std::exp(mean), std::sqrt(variance)};
}

namespace {

const char* whose_constants(Generation generation) {
  return generation == Generation::kAmpere   ? "Ampere's"
         : generation == Generation::kHopper ? "Hopper's"
                                             : "Trainium's";
}

}  // namespace

std::vector<std::string> beyond_published(const Run& run) {
  std::vector<std::string> words;
  if (!run.machine.published)
    words.push_back(fmt::format("no published run is on {}: its accelerators are taken for as good as {}",
                                run.machine.name, whose_constants(run.machine.generation)));
  if (!run.traits.published)
    words.push_back(fmt::format("no published run is of {}: its kernels are taken for as good as the others'",
                                run.traits.name));
  if (run.layout.given.experts > 1) words.push_back("no published run has experts");
  if (run.layout.given.zero_bubble) words.push_back("no published run has a zero-bubble schedule");
  if (accelerators_of(run) > kMostAccelerators)
    words.push_back(fmt::format("published runs end at {} accelerators", kMostAccelerators));
  if (run.layout.sequence_length > kMostTokens)
    words.push_back(fmt::format("published runs end at {} tokens a sequence", kMostTokens));
  if (whole_model(run.model, run.layout).parameters() > kMostParameters)
    words.push_back(fmt::format("published runs end at {:.0f} billion parameters", kMostParameters * 1e-9));
  return words;
}

}  // namespace shardrun::launcher
