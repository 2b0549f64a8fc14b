// Runs as Prometheus reads them: text that is both its exposition format, version 0.0.4, and OpenMetrics 1.0.
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
  std::optional<double> utilization;                              // of a rank's peak, in that step
  std::optional<double> validation_loss;                          // the newest
  std::optional<double> checkpoint_step, checkpoint_time;         // of the newest
  std::optional<double> resident_memory_bytes;                    // of the rank that holds most now
  std::optional<double> peak_memory_bytes, planned_memory_bytes;  // likewise, ever and as it was planned
  int faults = 0;                                                 // attempts that ended by one
  int stragglers = 0;  // ranks that were too slow, in attempts that are over
  std::optional<double>
      detection_seconds;  // from the last sign of life to the alarm, at the newest fault with one
};

// Returns families of gauges with a sample for each run that has a value for it, and the end that OpenMetrics wants.
std::string prometheus_text(const std::vector<RunSample>& runs);

}  // namespace shardrun::launcher
