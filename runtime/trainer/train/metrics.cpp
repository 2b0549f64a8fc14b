#include "runtime/trainer/train/metrics.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <vector>

#include <fmt/format.h>

#include "runtime/base/unix_time.h"
#include "runtime/contract/epoch.h"
#include "runtime/record/tensorboard.h"

namespace shardrun::train {

using record::MetricsLine;

namespace {

std::string with_thousands(int64_t value) {
  std::string digits = fmt::format("{}", value);
  for (auto at = static_cast<int64_t>(digits.size()) - 3; at > 0; at -= 3) {
    digits.insert(at, 1, ',');
  }
  return digits;
}

std::string clock_text(double seconds) {
  const auto total = static_cast<int64_t>(std::max(0.0, std::round(seconds)));
  if (total >= 3600) return fmt::format("{}:{:02}:{:02}", total / 3600, total / 60 % 60, total % 60);
  return fmt::format("{:02}:{:02}", total / 60, total % 60);
}

// Returns the line's figures as a record of TensorBoard; "" where it has none.
std::string tensorboard_record(const MetricsLine& line) {
  if (!line.step || !line.loss) return "";
  const std::string loss = "loss/" + (!line.event ? "train"
                                      : line.set  ? "evaluation/" + *line.set
                                                  : "validation");
  std::vector<record::Scalar> scalars = {{loss, *line.loss}};
  const std::pair<const char*, const std::optional<double>&> others[] = {
      {"optimizer/learning_rate", line.learning_rate},
      {"optimizer/gradient_norm", line.grad_norm},
      {"speed/tokens_per_second", line.tokens_per_second},
      {"speed/step_seconds", line.step_seconds}};
  for (const auto& [tag, value] : others) {
    if (value) scalars.push_back({tag, *value});
  }
  if (line.resident_bytes)
    scalars.push_back({"memory/resident_bytes", static_cast<double>(*line.resident_bytes)});
  return record::tensorboard_scalars(line.time.value_or(0.0), *line.step, scalars);
}

}  // namespace

Result<MetricsLog> MetricsLog::open(const record::RunDir& run, int attempt) {
  const std::string path = run.metrics_jsonl();
  base::UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, record::kFileMode));
  if (!fd) return base::errno_error(base::Code::kIo, path, errno);
  return MetricsLog(std::move(fd), run, attempt);
}

Result<void> MetricsLog::add_tensorboard() {
  RETURN_IF_ERROR(base::make_private_directory(run_.tensorboard()));
  // TensorBoard wants "tfevents" and the second in the name, and reads files of one folder in the order of their names.
  const double now = base::unix_now();
  const std::string path = fmt::format("{}/events.out.tfevents.{:010}.attempt_{:04}", run_.tensorboard(),
                                       static_cast<int64_t>(now), attempt_);
  base::UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, record::kFileMode));
  if (!fd) return base::errno_error(base::Code::kIo, path, errno);
  RETURN_IF_ERROR(base::write_all(fd.get(), record::tensorboard_version(now), path));
  events_ = std::move(fd);
  return {};
}

void MetricsLog::write(MetricsLine line) {
  line.attempt = attempt_;
  const bool ours = contract::check_epoch(run_, attempt_).has_value();
  if (!ours || !base::write_all(fd_.get(), to_json(line), run_.metrics_jsonl())) ++lines_lost_;
  const std::string record = events_ ? tensorboard_record(line) : "";
  if (ours && !record.empty() && !base::write_all(events_.get(), record, run_.tensorboard())) ++lines_lost_;
}

void MetricsLog::sample(int64_t step, const std::string& markdown) {
  const std::string record =
      record::tensorboard_text(base::unix_now(), step, "data/first_sequence", markdown);
  if (events_ && !base::write_all(events_.get(), record, run_.tensorboard())) ++lines_lost_;
}

void MetricsLog::first_barrier(double seconds) {
  write({.event = "first_barrier", .seconds = seconds, .unix_time = base::unix_now()});
}

void MetricsLog::step(const StepReport& report, double step_seconds, int64_t tokens_per_step,
                      int64_t resident_bytes) {
  write({.step = report.step,
         .loss = report.loss,
         .loss_hex = fmt::format("{:a}", report.loss),
         .learning_rate = report.learning_rate,
         .grad_norm = report.gradient_norm,
         .tokens_per_second = static_cast<double>(tokens_per_step) / step_seconds,
         .step_seconds = step_seconds,
         .resident_bytes = resident_bytes,
         .time = base::unix_now()});
}

void MetricsLog::validation(int64_t step, double loss, double unigram_entropy) {
  write({.event = "validation",
         .step = step,
         .loss = loss,
         .loss_hex = fmt::format("{:a}", loss),
         .unigram_entropy = unigram_entropy,
         .time = base::unix_now()});
}

void MetricsLog::evaluation(int64_t step, const std::string& set, double loss) {
  write({.event = "evaluation",
         .step = step,
         .loss = loss,
         .loss_hex = fmt::format("{:a}", loss),
         .set = set,
         .time = base::unix_now()});
}

void MetricsLog::checkpoint(int64_t step, const std::string& path, double stall_seconds) {
  write({.event = "checkpoint",
         .step = step,
         .path = path,
         .stall_seconds = stall_seconds,
         .time = base::unix_now()});
}

double percentile(std::span<const double> values, double share) {
  if (values.empty()) return 0.0;
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  const double nearest = std::ceil(share * static_cast<double>(sorted.size()));
  return sorted[static_cast<size_t>(std::max(1.0, nearest)) - 1];
}

std::string to_string(const ProgressLine& line) {
  return fmt::format("step {}/{}  loss {:.4f}  lr {:.2e}  grad norm {:.2f}  {} tokens/s  eta {}", line.step,
                     line.steps, line.loss, line.learning_rate, line.gradient_norm,
                     with_thousands(std::llround(line.tokens_per_second)),
                     clock_text(line.remaining_seconds));
}

}  // namespace shardrun::train
