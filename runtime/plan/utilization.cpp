#include "runtime/plan/utilization.h"

#include <fmt/format.h>

namespace shardrun::plan {
namespace {

std::string rate_text(double flops) {
  return flops >= 1e12 ? fmt::format("{:.1f} TFLOP/s", flops / 1e12)
                       : fmt::format("{:.1f} GFLOP/s", flops / 1e9);
}

}  // namespace

std::vector<Utilization> utilizations(double tokens_per_second, const FlopsPerToken& flops,
                                      const std::vector<PeakRate>& peaks, int ranks) {
  std::vector<Utilization> list;
  for (const PeakRate& peak : peaks) {
    if (peak.flops <= 0.0 || ranks < 1 || flops.causal <= 0.0) continue;
    const double rate = tokens_per_second / (peak.flops * ranks);
    const double full = flops.full > 0.0 ? flops.full : flops.causal;
    list.push_back({peak, rate * flops.causal, rate * full});
  }
  return list;
}

std::string to_string(const Utilization& utilization) {
  return fmt::format("{:.1f} % causal, {:.1f} % of all scores, of {} a rank ({})", 100.0 * utilization.causal,
                     100.0 * utilization.full, rate_text(utilization.peak.flops), utilization.peak.source);
}

}  // namespace shardrun::plan
