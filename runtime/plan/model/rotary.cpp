#include "runtime/plan/model/rotary.h"

#include <cmath>
#include <numbers>

namespace shardrun::plan {
namespace {

using spec::RopeScaling;

double scaled(double frequency, const spec::RotaryScaling& scaling) {
  if (scaling.kind == RopeScaling::kNone) return frequency;
  const double low = frequency / scaling.factor;
  if (scaling.kind == RopeScaling::kLinear) return low;
  const double wave = 2.0 * std::numbers::pi / frequency, original = scaling.original_length;
  if (wave < original / scaling.high_factor) return frequency;
  if (wave > original / scaling.low_factor) return low;
  const double share = (original / wave - scaling.low_factor) / (scaling.high_factor - scaling.low_factor);
  return (1.0 - share) * low + share * frequency;
}

}  // namespace

std::vector<float> rope_table(int64_t length, int64_t D, double theta, const spec::RotaryScaling& scaling) {
  const int64_t half = D / 2;
  std::vector<double> frequencies;
  for (int64_t i = 0; i < half; ++i) {
    const double frequency = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(D));
    frequencies.push_back(scaled(frequency, scaling));
  }
  std::vector<float> table(length * D);
  for (int64_t t = 0; t < length; ++t) {
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(t) * frequencies[i];
      table[t * D + i] = static_cast<float>(std::cos(angle));
      table[t * D + half + i] = static_cast<float>(std::sin(angle));
    }
  }
  return table;
}

}  // namespace shardrun::plan
