// Runs as Prometheus reads them: its text exposition format, version 0.0.4.
//
// Thread rule: pure function.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/view/metrics_log.h"

namespace shardrun::launcher {

struct RunSample {
  std::string name, id, scheduler;
  std::string state;  // as `status` says it; its first word becomes the label
  int ranks = 0;
  int attempts = 0;
  std::optional<StepPoint> last_step;
};

// Returns families of gauges with a sample for each run that has a value for it; "" for no runs.
std::string prometheus_text(const std::vector<RunSample>& runs);

}  // namespace shardrun::launcher
