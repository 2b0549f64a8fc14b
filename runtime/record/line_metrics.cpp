#include "runtime/record/line_metrics.h"

#include <algorithm>
#include <vector>

#include "runtime/record/run_lines.h"

namespace shardrun::record {

std::optional<TrainingMetrics> metrics_of_lines(std::string_view metrics) {
  TrainingMetrics figures;
  std::vector<double> seconds;
  double tokens = 0.0;
  int told_tokens = 0;
  std::optional<MetricsLine> before;
  for (MetricsLine& line : parse_metrics(metrics)) {
    if (line.event == "checkpoint") figures.checkpoint = line.path.value_or("");
    if (line.event == "validation" && line.loss) {
      figures.validation_loss = line.loss;
      figures.unigram_entropy = line.unigram_entropy;
    }
    if (!line.step || line.event) continue;
    if (line.loss && !figures.first_loss) figures.first_loss = line.loss;
    if (line.loss) figures.final_loss = line.loss;
    figures.steps = *line.step;
    if (line.tokens_per_second) {
      tokens += *line.tokens_per_second;
      ++told_tokens;
    }
    if (line.step_seconds) {
      seconds.push_back(*line.step_seconds);
    } else if (before && before->time && line.time && *line.step > *before->step &&
               *line.time > *before->time) {
      seconds.push_back((*line.time - *before->time) /
                        (static_cast<double>(*line.step) - static_cast<double>(*before->step)));
    }
    before = std::move(line);
  }
  if (!before) return std::nullopt;
  if (told_tokens > 0) figures.tokens_per_second = tokens / told_tokens;
  if (!seconds.empty()) {
    std::sort(seconds.begin(), seconds.end());
    figures.step_seconds_p50 = seconds[(seconds.size() - 1) / 2];
    figures.step_seconds_p99 = seconds[(seconds.size() - 1) * 99 / 100];
  }
  return figures;
}

}  // namespace shardrun::record
