// Model FLOPs utilization: the share of the hardware's peak that a model's own arithmetic took; recomputation and
// extra work of kernels are not counted.
//
// There are two conventions; published figures use either:
//   causal  of attention's scores, those that a causal mask lets through: half of them
//   full    all of them, as Chowdhery et al. 2022 (PaLM), appendix B count
// Borders of documents lower neither. The two differ by attention's share, and are the same for a model without a mask.
//
// Thread rule: plain values and pure functions.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/fields.h"

namespace shardrun::plan {

// The FLOPs of one token, forward and backward; 0: not known.
struct FlopsPerToken {
  double causal = 0.0, full = 0.0;

  friend bool operator==(const FlopsPerToken&, const FlopsPerToken&) = default;
};

// What a rank's hardware does in a second at most, in the type that the job computes in.
struct PeakRate {
  std::string kind;  // "measured" or "datasheet"
  double flops = 0.0;
  std::string source;  // the source in words

  friend bool operator==(const PeakRate&, const PeakRate&) = default;
};

void fields(auto& visit, base::Is<PeakRate> auto& peak) {
  visit.later("kind", peak.kind);
  visit.later("flops", peak.flops);
  visit.later("source", peak.source);
}

struct Utilization {
  PeakRate peak;
  double causal = 0.0, full = 0.0;  // shares of the peak

  friend bool operator==(const Utilization&, const Utilization&) = default;
};

void fields(auto& visit, base::Is<Utilization> auto& one) {
  fields(visit, one.peak);
  visit.later("causal", one.causal);
  visit.later("full", one.full);
}

// Returns the utilizations of `ranks` ranks that train so many tokens per second together, one for each peak; none
// where FLOPs are not known.
std::vector<Utilization> utilizations(double tokens_per_second, const FlopsPerToken& flops,
                                      const std::vector<PeakRate>& peaks, int ranks);
// Returns "41.2 % causal, 44.0 % of all scores, of 989.0 TFLOP/s a rank (datasheet of h200, bf16)".
std::string to_string(const Utilization& utilization);

}  // namespace shardrun::plan
