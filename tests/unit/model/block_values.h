// Parameters and gradients of a model's blocks, as tests of every architecture handle them.
//
// Thread rule: pure functions; checks are doctest's.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <functional>
#include <random>
#include <span>
#include <vector>

#include "runtime/plan/model/block_layout.h"
#include "runtime/trainer/kernels/ops.h"

namespace shardrun::testing {

using Blocks = std::vector<std::vector<float>>;

// Returns a block's values in the compute dtype.
inline std::vector<std::byte> bytes_of(const std::vector<float>& values, kernels::DType compute) {
  const auto copied = [](const auto& all) {
    const auto raw = std::as_bytes(std::span(all));
    return std::vector<std::byte>(raw.begin(), raw.end());
  };
  if (compute == kernels::DType::kFp32) return copied(values);
  std::vector<kernels::Bf16> narrow(values.size());
  kernels::fp32_to_bf16(values, std::span(narrow));
  return copied(narrow);
}

// Returns ‖a - b‖ / ‖b‖ over all blocks.
inline double distance(const Blocks& a, const Blocks& b) {
  double difference = 0.0, norm = 0.0;
  for (size_t block = 0; block < b.size(); ++block) {
    for (size_t i = 0; i < b[block].size(); ++i) {
      difference += std::pow(double{a[block][i]} - b[block][i], 2);
      norm += std::pow(double{b[block][i]}, 2);
    }
  }
  return std::sqrt(difference / norm);
}

// Checks that every value is the sum of the two.
inline void check_sum(const Blocks& got, const Blocks& first, const Blocks& second) {
  for (size_t block = 0; block < first.size(); ++block) {
    for (size_t i = 0; i < first[block].size(); ++i) {
      CAPTURE(block);
      CHECK_EQ(got[block][i], doctest::Approx(first[block][i] + second[block][i]).epsilon(1e-5));
    }
  }
}

// Checks each tensor's gradient against the slope of `loss` along a random direction inside the tensor: one number that every
// element takes part in. `loss` is of `parameters`, which are as before afterwards.
inline void check_slopes(const std::vector<plan::BlockLayout>& layouts, Blocks& parameters,
                         const Blocks& gradients, const std::function<double()>& loss) {
  for (size_t block = 0; block < layouts.size(); ++block) {
    for (const auto& tensor : layouts[block].parameters) {
      std::mt19937 generator(7);
      std::normal_distribution<double> normal;
      std::vector<float>& values = parameters[block];
      const std::vector<float> before = values;
      double slope = 0.0;
      std::vector<double> direction(static_cast<size_t>(tensor.elements()));
      for (size_t i = 0; i < direction.size(); ++i) {
        direction[i] = normal(generator);
        slope += direction[i] * gradients[block][static_cast<size_t>(tensor.offset) + i];
      }
      const double step = 2e-3 / std::sqrt(static_cast<double>(direction.size()));
      double losses[2];
      for (int side = 0; side < 2; ++side) {
        for (size_t i = 0; i < direction.size(); ++i) {
          const size_t at = static_cast<size_t>(tensor.offset) + i;
          values[at] = static_cast<float>(before[at] + (side == 0 ? -step : step) * direction[i]);
        }
        losses[side] = loss();
      }
      values = before;
      CAPTURE(tensor.name);
      CHECK_EQ(slope, doctest::Approx((losses[1] - losses[0]) / (2.0 * step)).epsilon(0.02).scale(0.05));
    }
  }
}

}  // namespace shardrun::testing
