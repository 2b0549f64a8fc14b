#include "tests/unit/forecast/fit.h"

#include <algorithm>
#include <cmath>

namespace shardrun::tests {

using launcher::kCommonKnobs;
using launcher::kFreedom;
using launcher::kKnobs;
using launcher::Knobs;
using launcher::Slopes;
using launcher::Spreads;
using launcher::Square;

namespace {

constexpr int kFitRounds = 16;
constexpr double kOdd = 6.0;        // squared deviations beyond which a row is taken for an odd one
constexpr double kMostMoved = 0.5;  // of a logarithm, from where the slopes were taken
// Publications, and rows, that the spreads before count as (decision 0096).
constexpr double kPublicationsBefore = 0.5, kRowsBefore = 10.0;

double accelerators(const Row& row) {
  return static_cast<double>(row.layout.nodes * row.machine.per_node);
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

std::vector<double> product(const Square& matrix, const std::vector<double>& vector) {
  std::vector<double> found(vector.size(), 0.0);
  for (size_t i = 0; i < vector.size(); ++i)
    for (size_t j = 0; j < vector.size(); ++j) found[i] += matrix.at(i, j) * vector[j];
  return found;
}

// The inverse of what a lower factor is of.
Square inverse_of(const Square& lower) {
  const size_t n = lower.size();
  Square root(n), inverse(n);  // of the factor, and of the whole
  for (size_t i = 0; i < n; ++i) {
    root.at(i, i) = 1.0;
    for (size_t k = 0; k < i; ++k)
      for (size_t j = 0; j <= k; ++j) root.at(i, j) -= lower.at(i, k) * root.at(k, j);
    for (size_t j = 0; j <= i; ++j) root.at(i, j) /= lower.at(i, i);
  }
  for (size_t k = 0; k < n; ++k)
    for (size_t i = 0; i <= k; ++i)
      for (size_t j = 0; j <= i; ++j) inverse.at(i, j) += root.at(k, i) * root.at(k, j);
  for (size_t i = 0; i < n; ++i)
    for (size_t j = 0; j < i; ++j) inverse.at(j, i) = inverse.at(i, j);
  return inverse;
}

// How much of a variance the rows show, and how much of it they would show if it were as it is taken to be.
struct Evidence {
  double shown = 0.0, expected = 0.0;

  // Moves a standard deviation to where both agree; that before counts as `count` times what one would show.
  void move(double& deviation, double before, double count) const {
    const double ratio = before / deviation;
    deviation *= std::sqrt((shown + count * ratio * ratio) / (expected + count));
  }
};

struct SpreadsEvidence {
  std::array<Evidence, kCommonKnobs> between;
  Evidence publication, alike, alike_on_trainium, noise;

  void move(Spreads& spreads) const {
    const Spreads before = launcher::spreads_before();
    for (size_t k = 0; k < kCommonKnobs; ++k)
      between[k].move(spreads.between[k], before.between[k], kPublicationsBefore);
    publication.move(spreads.publication, before.publication, kPublicationsBefore);
    alike.move(spreads.alike, before.alike, kRowsBefore);
    alike_on_trainium.move(spreads.alike_on_trainium, before.alike_on_trainium, kPublicationsBefore);
    noise.move(spreads.noise, before.noise, kRowsBefore);
  }
};

}  // namespace

// One fit while it goes on: each round weighs every publication by what the one before left of it, and then moves constants
// and spreads.
class Rounds {
 public:
  Rounds(const Linearized& rows, const std::string& left_out) : at_(rows.at_) {
    for (const Linearized::Block& block : rows.blocks_)
      if (block.publication != left_out)
        parts_.push_back({&block, std::vector<double>(block.runs.size(), 1.0)});
  }

  void run() {
    Square normal(kKnobs);
    std::vector<double> right(kKnobs);
    for (size_t k = 0; k < kKnobs; ++k) {
      const launcher::Knob& knob = launcher::knob(static_cast<int>(k));
      normal.at(k, k) = 1.0 / (knob.spread * knob.spread);
      right[k] = -normal.at(k, k) * (at_[k] - std::log(knob.before));
    }
    SpreadsEvidence evidence;
    for (Part& part : parts_) weigh(part, normal, right, evidence);
    moved_ = launcher::solve(launcher::lower_of(std::move(normal)), std::move(right));
    for (double& moved : moved_) moved = std::clamp(moved, -kMostMoved, kMostMoved);
    if (!first_) evidence.move(spreads_);
    first_ = false;
  }

  Fitted found() const {
    Knobs found = at_;
    for (size_t k = 0; k < kKnobs; ++k) found[k] += moved_[k];
    return {launcher::constants_of(found), spreads_};
  }

 private:
  struct Part {
    const Linearized::Block* block;
    std::vector<double> odd;  // how many times the common noise each row has
  };

  double alike_variance(const Linearized::Block& block) const {
    const double spread = launcher::alike_spread(block.runs.front(), spreads_);
    return spread * spread;
  }

  Square inverse_covariance(const Part& part) const {
    const Linearized::Block& block = *part.block;
    const size_t n = block.runs.size();
    const double alike = alike_variance(block);
    Square all(n);
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j <= i; ++j)
        all.at(i, j) =
            launcher::covariance(block.slopes[i], block.slopes[j], alike * block.likeness.at(i, j), spreads_);
      all.at(i, i) += spreads_.noise * spreads_.noise * part.odd[i];
    }
    return inverse_of(launcher::lower_of(std::move(all)));
  }

  static std::vector<double> column(const Linearized::Block& block, size_t knob) {
    std::vector<double> column;
    for (const Slopes& one : block.slopes) column.push_back(one.slopes[knob]);
    return column;
  }

  void weigh(Part& part, Square& normal, std::vector<double>& right, SpreadsEvidence& evidence) {
    const Linearized::Block& block = *part.block;
    const Square inverse = inverse_covariance(part);
    std::vector<double> left = block.misses;
    for (size_t i = 0; i < left.size(); ++i)
      for (size_t k = 0; k < kKnobs; ++k) left[i] -= block.slopes[i].slopes[k] * moved_[k];
    const std::vector<double> weighed = product(inverse, left);
    const auto count = static_cast<double>(left.size());
    const double weight = first_ ? 1.0 : std::min(1.0, (kFreedom + count) / (kFreedom + dot(left, weighed)));
    std::vector<std::vector<double>> columns;
    for (size_t k = 0; k < kKnobs; ++k) columns.push_back(column(block, k));
    for (size_t k = 0; k < kKnobs; ++k) {
      const std::vector<double> sharp = product(inverse, columns[k]);
      right[k] += weight * dot(sharp, block.misses);
      for (size_t m = 0; m < kKnobs; ++m) normal.at(m, k) += weight * dot(columns[m], sharp);
      if (k >= kCommonKnobs) continue;
      const double variance = spreads_.between[k] * spreads_.between[k], along = dot(columns[k], weighed);
      evidence.between[k].shown += weight * variance * along * along;
      evidence.between[k].expected += variance * dot(columns[k], sharp);
    }
    if (first_) return;
    add_evidence(part, inverse, weighed, weight, evidence);
    for (size_t i = 0; i < left.size(); ++i)
      part.odd[i] = std::max(1.0, weighed[i] * weighed[i] / inverse.at(i, i) * part.odd[i] / kOdd);
  }

  // Of what a publication has as a whole, of what runs that are alike share, and of noise.
  void add_evidence(const Part& part, const Square& inverse, const std::vector<double>& weighed,
                    double weight, SpreadsEvidence& evidence) const {
    const Linearized::Block& block = *part.block;
    const double publication = spreads_.publication * spreads_.publication, alike = alike_variance(block),
                 noise = spreads_.noise * spreads_.noise;
    Evidence& of_alike = block.on_trainium ? evidence.alike_on_trainium : evidence.alike;
    for (size_t i = 0; i < weighed.size(); ++i) {
      for (size_t j = 0; j < weighed.size(); ++j) {
        const double shown = weight * weighed[i] * weighed[j], expected = inverse.at(i, j);
        evidence.publication.shown += publication * shown;
        evidence.publication.expected += publication * expected;
        of_alike.shown += alike * block.likeness.at(i, j) * shown;
        of_alike.expected += alike * block.likeness.at(i, j) * expected;
      }
      evidence.noise.shown += noise * part.odd[i] * weight * weighed[i] * weighed[i];
      evidence.noise.expected += noise * part.odd[i] * inverse.at(i, i);
    }
  }

  Knobs at_;
  std::vector<Part> parts_;
  std::vector<double> moved_ = std::vector<double>(kKnobs, 0.0);
  Spreads spreads_ = launcher::spreads_before();
  bool first_ = true;
};

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
    : at_(launcher::knobs_of(at)) {
  for (size_t begin = 0; begin < rows.size();) {
    size_t end = begin;
    while (end < rows.size() && rows[end].publication == rows[begin].publication) ++end;
    Block block{.publication = rows[begin].publication,
                .on_trainium = rows[begin].machine.generation == launcher::Generation::kTrainium,
                .likeness = Square(end - begin)};
    for (size_t i = begin; i < end; ++i) {
      block.runs.push_back(run_of(rows[i]));
      block.slopes.push_back(launcher::slopes_of(block.runs.back(), at));
      block.misses.push_back(std::log(measured_rate(rows[i])) - block.slopes.back().rate);
    }
    for (size_t i = 0; i < block.runs.size(); ++i)
      for (size_t j = 0; j < block.runs.size(); ++j)
        block.likeness.at(i, j) = launcher::likeness(block.runs[i], block.runs[j]);
    blocks_.push_back(std::move(block));
    begin = end;
  }
}

Fitted Linearized::fit(const std::string& left_out) const {
  Rounds rounds(*this, left_out);
  for (int round = 0; round < kFitRounds; ++round) rounds.run();
  return rounds.found();
}

Fitted fit(const std::vector<Row>& rows) {
  constexpr int kLinearizations = 5;
  Knobs before{};
  for (int k = 0; k < kKnobs; ++k) before[static_cast<size_t>(k)] = std::log(launcher::knob(k).before);
  Fitted fitted{launcher::constants_of(before), launcher::spreads_before()};
  for (int round = 0; round < kLinearizations; ++round) fitted = Linearized(rows, fitted.constants).fit();
  return fitted;
}

}  // namespace shardrun::tests
