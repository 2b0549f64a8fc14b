// The median that needs no average: the lower one of an even number.
//
// Thread rule: pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace shardrun::base {

// Of at least one value.
inline double lower_median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace shardrun::base
