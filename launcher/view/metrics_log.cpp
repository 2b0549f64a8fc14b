#include "launcher/view/metrics_log.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <limits>

#include <fmt/format.h>

#include "runtime/base/io.h"
#include "runtime/record/run_lines.h"

namespace shardrun::launcher {
namespace {

constexpr int64_t kPieceBytes = int64_t{1} << 20;

// The seconds of a step of a program that tells only when its steps ended; not a number where two lines do not say.
double seconds_between(const StepPoint& before, const StepPoint& point) {
  if (before.time <= 0.0 || point.time <= before.time || point.step <= before.step)
    return std::numeric_limits<double>::quiet_NaN();
  return (point.time - before.time) / static_cast<double>(point.step - before.step);
}

void replace_from(std::vector<StepPoint>& points, const StepPoint& point) {
  while (!points.empty() && points.back().step >= point.step) points.pop_back();
  points.push_back(point);
}

}  // namespace

void add_metrics(std::string_view text, TrainingCurve& curve) {
  for (const record::MetricsLine& line : record::parse_metrics(text, curve.newest_attempt)) {
    curve.newest_attempt = line.attempt;
    if (line.total_steps) curve.total_steps = *line.total_steps;
    if (!line.step || !line.loss) continue;
    StepPoint point{*line.step, *line.loss};
    point.tokens_per_second = line.tokens_per_second.value_or(point.tokens_per_second);
    point.step_seconds = line.step_seconds.value_or(point.step_seconds);
    point.grad_norm = line.grad_norm.value_or(point.grad_norm);
    point.learning_rate = line.learning_rate.value_or(point.learning_rate);
    point.time = line.time.value_or(0.0);
    if (!line.event) {
      if (!line.step_seconds && !curve.steps.empty())
        point.step_seconds = seconds_between(curve.steps.back(), point);
      replace_from(curve.steps, point);
    } else if (line.event == "validation") {
      replace_from(curve.validations, point);
      curve.unigram_entropy = line.unigram_entropy.value_or(0.0);
    }
  }
}

std::optional<int64_t> FirstStep::of(const std::string& path, int attempt) {
  if (attempt != attempt_) *this = FirstStep();
  attempt_ = attempt;
  // Lines of other attempts, of which there may be very many, are not parsed.
  const std::string word = fmt::format("\"attempt\":{}", attempt);
  while (!step_) {
    const std::string piece = file_.take_new(path, /*to_the_end=*/false, kPieceBytes);
    if (piece.empty()) break;
    const std::string_view text = piece;
    for (size_t at = text.find(word); at != std::string_view::npos && !step_; at = text.find(word, at + 1)) {
      const size_t begin = text.rfind('\n', at) + 1;  // of the first line 0
      for (const record::MetricsLine& line :
           record::parse_metrics(text.substr(begin, text.find('\n', at) - begin))) {
        if (!line.event && line.attempt == attempt) step_ = line.step;
      }
    }
  }
  return step_;
}

void each_piece(const std::string& path, const std::function<void(std::string_view lines)>& add) {
  GrowingText file;
  while (true) {
    const std::string lines = file.take_new(path, /*to_the_end=*/false, kPieceBytes);
    if (lines.empty()) return;
    add(lines);
  }
}

void each_sample(const std::string& path, int64_t most_bytes,
                 const std::function<void(std::string_view lines)>& add) {
  constexpr int64_t kSampleBytes = int64_t{16} << 10;
  std::error_code ignored;
  const auto size = static_cast<int64_t>(std::filesystem::file_size(path, ignored));
  if (ignored || size <= most_bytes) return each_piece(path, add);
  const auto fd = base::open_to_read(path);
  if (!fd) return;
  const int64_t pieces = std::max<int64_t>(2, most_bytes / kSampleBytes);
  std::string text;
  for (int64_t piece = 0; piece < pieces; ++piece) {
    text.resize(kSampleBytes);
    const ssize_t got =
        ::pread(fd->get(), text.data(), text.size(), (size - kSampleBytes) * piece / (pieces - 1));
    if (got <= 0) return;
    std::string_view lines = std::string_view(text).substr(0, static_cast<size_t>(got));
    if (piece > 0) lines.remove_prefix(std::min(lines.find('\n'), lines.size() - 1) + 1);
    add(lines.substr(0, lines.rfind('\n') + 1));
  }
}

}  // namespace shardrun::launcher
