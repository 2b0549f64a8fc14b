// Peaks and utilizations as run records have them, in JSON.
//
// Thread rule: pure functions.
#pragma once

#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "runtime/plan/utilization.h"

namespace shardrun::record {

nlohmann::json peaks_json(const std::vector<plan::PeakRate>& peaks);
nlohmann::json utilizations_json(const std::vector<plan::Utilization>& utilizations);

// Null, and what is no object, are nothing; members that are missing are 0 or empty.
std::vector<plan::PeakRate> read_peaks(const nlohmann::json* list);
std::vector<plan::Utilization> read_utilizations(const nlohmann::json* list);

}  // namespace shardrun::record
