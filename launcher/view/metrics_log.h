// metrics.jsonl as the views need it: the steps and validations that the trainer reported.
//
// Thread rule: pure functions; FirstStep is thread-compatible.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/view/growing_text.h"

namespace shardrun::launcher {

// What a line says of a step; what it does not say is NaN.
struct StepPoint {
  int64_t step = 0;
  double loss = 0.0;
  double tokens_per_second = std::numeric_limits<double>::quiet_NaN();
  double step_seconds = std::numeric_limits<double>::quiet_NaN();
  double grad_norm = std::numeric_limits<double>::quiet_NaN();
  double learning_rate = std::numeric_limits<double>::quiet_NaN();
  double time = 0.0;  // when it ended; 0: unknown
};

struct TrainingCurve {
  std::vector<StepPoint> steps;
  std::vector<StepPoint> validations;  // loss only
  double unigram_entropy = 0.0;        // 0 if unknown
  int newest_attempt = 0;              // the newest attempt in the lines so far
  int64_t total_steps = 0;             // how many a command program said there will be; 0: it did not
};

// Adds the lines of `text` to `curve`; lines that are not JSON, without a loss, or of no interest are skipped. A step
// that appears again (after a restart) replaces what came at and after it.
void add_metrics(std::string_view text, TrainingCurve& curve);

// The first step of an attempt, looked for in a metrics.jsonl of a trainer that grows.
class FirstStep {
 public:
  // Reads what has come since the last call for this attempt.
  std::optional<int64_t> of(const std::string& path, int attempt);

 private:
  GrowingText file_;
  int attempt_ = -1;
  std::optional<int64_t> step_;
};

// Calls `add` with the whole lines of a metrics.jsonl, piece by piece, so that no more than a piece of it is in memory.
void each_piece(const std::string& path, const std::function<void(std::string_view lines)>& add);

// As each_piece, but of a file that has grown for months no more than about `most_bytes`: pieces at even distances, the file's
// first and last lines among them.
void each_sample(const std::string& path, int64_t most_bytes,
                 const std::function<void(std::string_view lines)>& add);

}  // namespace shardrun::launcher
