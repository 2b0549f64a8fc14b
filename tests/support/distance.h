// How far values are from those that were expected.
//
// Thread rule: pure functions.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <vector>

namespace shardrun::tests {

// Returns ‖a − b‖ / ‖b‖ in fp64; NaN never passes a comparison with a bound.
inline double distance(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE_EQ(a.size(), b.size());
  double difference = 0.0, norm = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    norm += double{b[i]} * b[i];
  }
  return std::sqrt(difference / norm);
}

}  // namespace shardrun::tests
