// A median that needs no average: of an even number of values it is the lower middle one.
//
// Thread rule: pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace shardrun::base {

// Requires at least one value.
inline double lower_median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace shardrun::base
