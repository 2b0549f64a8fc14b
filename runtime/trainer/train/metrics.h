// What rank 0 writes about a run: metrics.jsonl while it runs, summary.json at its end, progress lines on
// stdout.
//
// metrics.jsonl, one JSON object a line, appended in one write each:
//   {"event":"first_barrier","seconds":0.412,"unix_time":1700000000.123,"attempt":0}
//   {"step":20,"loss":2.41370010,"loss_hex":"0x1.34f…p+1","learning_rate":0.00029,"grad_norm":0.81,
//    "tokens_per_second":6812.3,"step_seconds":0.3,"time":1700000000.123,"attempt":0}
//   {"event":"validation","step":300,"loss":1.75,"loss_hex":"…","unigram_entropy":3.11,"time":…,"attempt":0}
//   {"event":"evaluation","step":300,"loss":1.75,"loss_hex":"…","set":"code","time":…,"attempt":0}
//   {"event":"checkpoint","step":300,"path":"…","time":…,"attempt":0}
// loss_hex is the exact double. After a restart the steps since the last checkpoint appear again; the later
// line of a step counts.
//
// Thread rule: thread-compatible.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "runtime/base/io.h"
#include "runtime/base/result.h"
#include "runtime/record/run_dir.h"
#include "runtime/record/run_lines.h"
#include "runtime/trainer/train/session.h"

namespace shardrun::train {

class MetricsLog {
 public:
  // Appends to the run's metrics.jsonl, for as long as the attempt is the newest. kIo when it cannot be opened.
  static Result<MetricsLog> open(const record::RunDir& run, int attempt);
  // Writes the figures into a file of TensorBoard, too, one for each attempt, below tensorboard/ in the run directory. kIo when
  // it cannot be made.
  Result<void> add_tensorboard();

  // Shows a sequence that is trained on behind `step`, in TensorBoard alone.
  void sample(int64_t step, const std::string& markdown);
  void first_barrier(double seconds);
  // `resident_bytes`: that this rank holds in memory now.
  void step(const StepReport& report, double step_seconds, int64_t tokens_per_step, int64_t resident_bytes);
  void validation(int64_t step, double loss, double unigram_entropy);
  void evaluation(int64_t step, const std::string& set, double loss);
  // `stall_seconds`: that rank 0's training waited for it.
  void checkpoint(int64_t step, const std::string& path, double stall_seconds);
  // Lines that could not be written, or were not as another attempt has begun. A full disk costs lines, never the
  // job.
  int64_t lines_lost() const { return lines_lost_; }

 private:
  MetricsLog(base::UniqueFd fd, record::RunDir run, int attempt)
      : fd_(std::move(fd)), run_(std::move(run)), attempt_(attempt) {}
  void write(record::MetricsLine line);

  base::UniqueFd fd_;
  base::UniqueFd events_;  // TensorBoard's file, where one is wanted
  record::RunDir run_;
  int attempt_ = 0;
  int64_t lines_lost_ = 0;
};

// `share` in [0,1] of the values; nearest rank. 0 for no values.
double percentile(std::span<const double> values, double share);

struct ProgressLine {
  int64_t step = 0, steps = 0;
  double loss = 0.0, learning_rate = 0.0, gradient_norm = 0.0;
  double tokens_per_second = 0.0;
  double remaining_seconds = 0.0;
};
// "step 20/300  loss 2.4137  lr 2.90e-04  grad norm 0.81  6,812 tokens/s  eta 00:41"
std::string to_string(const ProgressLine& line);

}  // namespace shardrun::train
