#include "runtime/record/utilization_json.h"

#include <string>

#include <nlohmann/json.hpp>

namespace shardrun::record {
namespace {

using nlohmann::json;
using plan::PeakRate;
using plan::Utilization;

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

}  // namespace

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

}  // namespace shardrun::record
