#include "runtime/contract/utilization.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/contract/utilization_json.h"

namespace shardrun::contract {
namespace {

using nlohmann::json;

double number_of(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : 0.0;
}

std::string text_of(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

json peak_json(const PeakRate& peak) {
  return {{"kind", peak.kind}, {"flops", peak.flops}, {"source", peak.source}};
}

PeakRate read_peak(const json& object) {
  return {text_of(object, "kind"), number_of(object, "flops"), text_of(object, "source")};
}

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

json peaks_json(const std::vector<PeakRate>& peaks) {
  json list = json::array();
  for (const PeakRate& peak : peaks) list.push_back(peak_json(peak));
  return list;
}

std::vector<PeakRate> read_peaks(const json* list) {
  std::vector<PeakRate> peaks;
  if (list == nullptr || !list->is_array()) return peaks;
  for (const json& item : *list) {
    if (item.is_object()) peaks.push_back(read_peak(item));
  }
  return peaks;
}

json utilizations_json(const std::vector<Utilization>& utilizations) {
  json list = json::array();
  for (const Utilization& one : utilizations) {
    json object = peak_json(one.peak);
    object["causal"] = one.causal;
    object["full"] = one.full;
    list.push_back(std::move(object));
  }
  return list;
}

std::vector<Utilization> read_utilizations(const json* list) {
  std::vector<Utilization> found;
  if (list == nullptr || !list->is_array()) return found;
  for (const json& item : *list) {
    if (item.is_object())
      found.push_back({read_peak(item), number_of(item, "causal"), number_of(item, "full")});
  }
  return found;
}

}  // namespace shardrun::contract
