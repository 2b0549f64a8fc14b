#include "runtime/trainer/generate/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "runtime/base/counter_random.h"

namespace shardrun::generate {

base::Result<void> check_logits(std::span<const float> logits) {
  float largest = -std::numeric_limits<float>::infinity();
  bool numbers = true;
  for (const float logit : logits) {
    numbers = numbers && !std::isnan(logit);
    largest = std::max(largest, logit);
  }
  if (numbers && std::isfinite(largest)) return {};
  return base::Error(base::Code::kCorrupt,
                     "the model's logits are not finite: its weights are damaged, or its training diverged");
}

int32_t next_token(std::span<const float> logits, const Sampling& sampling, int64_t number) {
  const auto likeliest = std::max_element(logits.begin(), logits.end());
  if (sampling.temperature <= 0.0) return static_cast<int32_t>(likeliest - logits.begin());
  std::vector<double> odds;
  for (const float logit : logits)
    odds.push_back(std::exp((double{logit} - double{*likeliest}) / sampling.temperature));
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return odds[a] > odds[b]; });
  const double all = std::accumulate(odds.begin(), odds.end(), 0.0);
  double kept = 0.0;
  size_t count = 0;
  while (count < order.size() && (count == 0 || kept < sampling.top_p * all)) kept += odds[order[count++]];
  const uint64_t bits = base::random_bits(sampling.seed, static_cast<uint64_t>(number));
  double rest = static_cast<double>(bits >> 11) * 0x1.0p-53 * kept;
  for (size_t i = 0; i + 1 < count; ++i) {
    rest -= odds[order[i]];
    if (rest < 0.0) return order[i];
  }
  return order[count - 1];
}

double log_probability(std::span<const float> logits, int32_t token) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  return static_cast<double>(logits[static_cast<size_t>(token)]) - largest - std::log(sum);
}

}  // namespace shardrun::generate
