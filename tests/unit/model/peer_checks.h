// Checks of a tiny model's losses and gradients against a peer's (families.h).
//
// Thread rule: pure functions; checks are doctest's.
#pragma once

#include <algorithm>
#include <cmath>

#include "tests/unit/model/families.h"
#include "tests/unit/model/one_rank.h"

namespace shardrun::tests {

// The loss of a step must be the peer's, the first within 1e-5, those after it within 1e-4.
inline void check_loss(const Peer& peer, int step, double ours) {
  const double theirs = peer.losses[static_cast<size_t>(step)];
  CHECK_LT(std::abs(ours - theirs) / theirs, step == 0 ? 1e-5 : 1e-4);
}

// Exactly the peer's parameters must have gradients; of each, the norm and the product with random numbers must be the peer's
// within 1e-5 of the norm. A softmax does not see a bias of all its keys, so that such a gradient is rounding and only has to be
// as small as the peer's. `rank` has run a step.
inline void check_gradients(const Peer& peer, OneRank& rank) {
  size_t parameters = 0;
  for (const auto& block : rank.blocks()) parameters += block.parameters.size();
  CHECK_EQ(peer.gradients.size(), parameters);
  constexpr double kRounding = 1e-6;  // of the largest norm
  double largest = 0.0;
  for (const auto& [name, numbers] : peer.gradients) largest = std::max(largest, numbers.front());
  for (const auto& [name, numbers] : peer.gradients) {
    CAPTURE(name);
    const auto gradient = rank.gradient(name);
    REQUIRE_FALSE(gradient.empty());
    REQUIRE_EQ(numbers.size(), 2);
    const uint64_t key = base::random_bits(2, base::hash_name(name));
    double squares = 0.0, product = 0.0;
    for (size_t i = 0; i < gradient.size(); ++i) {
      squares += double{gradient[i]} * gradient[i];
      product += gradient[i] * base::random_normal(key, i);
    }
    if (name.ends_with("key.bias") && numbers[0] < kRounding * largest) {
      CHECK_LT(std::sqrt(squares), kRounding * largest);
      continue;
    }
    CHECK_LT(std::abs(std::sqrt(squares) - numbers[0]) / numbers[0], 1e-5);
    CHECK_LT(std::abs(product - numbers[1]) / numbers[0], 1e-5);
  }
}

}  // namespace shardrun::tests
