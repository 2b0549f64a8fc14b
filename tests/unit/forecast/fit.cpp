#include "tests/unit/forecast/fit.h"

#include <algorithm>
#include <cmath>

namespace shardrun::tests {
namespace {

using launcher::kKnobs;
using launcher::Knobs;
using launcher::Square;

constexpr double kFreedom = 4.0;  // of Student's t: how little a publication far off weighs
constexpr double kOdd = 6.0;      // squared deviations beyond which a row is taken for an odd one

double accelerators(const Row& row) {
  return static_cast<double>(row.layout.nodes * row.machine.per_node);
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// The diagonal of the inverse of a factored matrix.
std::vector<double> inverse_diagonal(const Square& lower) {
  std::vector<double> diagonal;
  for (size_t i = 0; i < lower.size(); ++i) {
    std::vector<double> unit(lower.size());
    unit[i] = 1.0;
    diagonal.push_back(launcher::solve(lower, std::move(unit))[i]);
  }
  return diagonal;
}

// One publication while it is fitted: what it says, and how much noise each of its rows turned out to have.
struct Part {
  std::vector<double> miss;                 // of the rates at the linearization
  std::vector<std::vector<double>> slopes;  // by knob, of each row
  std::vector<double> noise;

  std::vector<double> left(const std::vector<double>& moved) const {
    std::vector<double> left = miss;
    for (size_t k = 0; k < slopes.size(); ++k)
      for (size_t i = 0; i < left.size(); ++i) left[i] -= slopes[k][i] * moved[k];
    return left;
  }
};

Square with_noise(Square covariance, const std::vector<double>& noise) {
  for (size_t i = 0; i < noise.size(); ++i) covariance.at(i, i) += noise[i];
  return covariance;
}

}  // namespace

launcher::Run run_of(const Row& row) {
  return {row.machine, row.model, row.layout, row.traits};
}

double measured_rate(const Row& row) {
  return row.rate * accelerators(row);
}

double predicted_rate(const Row& row, const launcher::Constants& constants) {
  return launcher::forecast_step(row.machine, row.model, row.layout, row.traits, constants)
             .tokens_per_second() /
         accelerators(row);
}

Linearized::Linearized(const std::vector<Row>& rows, const launcher::Constants& at)
    : rows_(&rows), at_(launcher::knobs_of(at)) {
  for (const Row& row : rows) slopes_.push_back(launcher::slopes_of(run_of(row), at));
  for (size_t begin = 0; begin < rows.size();) {
    size_t end = begin;
    while (end < rows.size() && rows[end].publication == rows[begin].publication) ++end;
    Block block{rows[begin].publication, {}, Square(end - begin)};
    for (size_t i = begin; i < end; ++i) {
      block.rows.push_back(i);
      for (size_t j = begin; j < end; ++j)
        block.covariance.at(i - begin, j - begin) =
            launcher::covariance(run_of(rows[i]), slopes_[i], run_of(rows[j]), slopes_[j]);
    }
    blocks_.push_back(std::move(block));
    begin = end;
  }
}

launcher::Constants Linearized::fit(const std::string& left_out) const {
  constexpr int kRounds = 5;
  constexpr int kNoiseRounds = 3;  // in which odd rows are found
  std::vector<const Block*> blocks;
  std::vector<Part> parts;
  for (const Block& block : blocks_) {
    if (block.publication == left_out) continue;
    Part part;
    part.slopes.resize(kKnobs);
    for (const size_t i : block.rows) {
      for (size_t k = 0; k < kKnobs; ++k) part.slopes[k].push_back(slopes_[i].slopes[k]);
      part.miss.push_back(std::log(measured_rate((*rows_)[i])) - slopes_[i].rate);
      part.noise.push_back(launcher::noise_variance());
    }
    blocks.push_back(&block);
    parts.push_back(std::move(part));
  }
  std::vector<double> moved(kKnobs, 0.0);
  for (int round = 0; round < kRounds; ++round) {
    Square normal(kKnobs);
    std::vector<double> right(kKnobs);
    for (size_t k = 0; k < kKnobs; ++k) {
      const launcher::Knob& knob = launcher::knob(static_cast<int>(k));
      const double weight = 1.0 / (knob.spread * knob.spread);
      normal.at(k, k) = weight;
      right[k] = -weight * (at_[k] - std::log(knob.before));
    }
    for (size_t b = 0; b < parts.size(); ++b) {
      Part& part = parts[b];
      const Square lower = launcher::lower_of(with_noise(blocks[b]->covariance, part.noise));
      const std::vector<double> left = part.left(moved), weighed = launcher::solve(lower, left);
      const auto count = static_cast<double>(left.size());
      const double weight =
          round == 0 ? 1.0 : std::min(1.0, (kFreedom + count) / (kFreedom + dot(left, weighed)));
      const std::vector<double> misses = launcher::solve(lower, part.miss);
      for (size_t k = 0; k < kKnobs; ++k) {
        const std::vector<double> other = launcher::solve(lower, part.slopes[k]);
        right[k] += weight * dot(part.slopes[k], misses);
        for (size_t m = 0; m < kKnobs; ++m) normal.at(m, k) += weight * dot(part.slopes[m], other);
      }
      if (round == 0 || round > kNoiseRounds) continue;
      const std::vector<double> sharpness = inverse_diagonal(lower);
      for (size_t i = 0; i < left.size(); ++i) {
        const double odd =
            weighed[i] * weighed[i] / sharpness[i] * part.noise[i] / launcher::noise_variance();
        part.noise[i] = launcher::noise_variance() * std::max(1.0, odd / kOdd);
      }
    }
    moved = launcher::solve(launcher::lower_of(std::move(normal)), std::move(right));
  }
  Knobs found = at_;
  for (size_t k = 0; k < kKnobs; ++k) found[k] += std::clamp(moved[k], -0.5, 0.5);
  return launcher::constants_of(found);
}

launcher::Constants fit(const std::vector<Row>& rows) {
  constexpr int kRounds = 5;
  Knobs before{};
  for (int k = 0; k < kKnobs; ++k) before[static_cast<size_t>(k)] = std::log(launcher::knob(k).before);
  launcher::Constants constants = launcher::constants_of(before);
  for (int round = 0; round < kRounds; ++round) constants = Linearized(rows, constants).fit();
  return constants;
}

}  // namespace shardrun::tests
