// Which token follows: the likeliest, or one that is drawn.
//
// Thread rule: pure functions.
// Source: Holtzman et al. 2020 (top_p).
#pragma once

#include <cstdint>
#include <span>

#include "runtime/base/result.h"

namespace shardrun::generate {

struct Sampling {
  double temperature = 0.0;  // logits are divided by it; 0: the likeliest token is taken
  double top_p = 1.0;        // a token is drawn among the likeliest whose probabilities reach this sum
  uint64_t seed = 1;
};

// Returns the token that follows as number `number` of the generated ones: a function of the arguments alone. Of equally likely
// ones the lower.
int32_t next_token(std::span<const float> logits, const Sampling& sampling, int64_t number);

// kCorrupt when a logit is no number or the largest is not finite: the weights are damaged, and any token would be as good.
base::Result<void> check_logits(std::span<const float> logits);

// Returns the logarithm of the probability that the token follows, in nats.
double log_probability(std::span<const float> logits, int32_t token);

}  // namespace shardrun::generate
