#include "launcher/view/progress.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace shardrun::launcher {

std::string render_progress(const TrainingCurve& curve, int64_t total_steps, int columns) {
  if (curve.steps.empty()) return "";
  if (total_steps < 1) total_steps = curve.total_steps;
  const StepPoint& last = curve.steps.back();
  constexpr size_t kWindow = 20;  // steps over which the speed is averaged
  double seconds = 0.0, tokens = 0.0;
  const size_t window = std::min(kWindow, curve.steps.size());
  for (size_t i = curve.steps.size() - window; i < curve.steps.size(); ++i) {
    const StepPoint& point = curve.steps[i];
    if (std::isfinite(point.step_seconds)) seconds += point.step_seconds;
    if (std::isfinite(point.step_seconds * point.tokens_per_second))
      tokens += point.tokens_per_second * point.step_seconds;
  }
  const double remaining =
      seconds / static_cast<double>(window) * static_cast<double>(total_steps - last.step);
  std::string numbers =
      total_steps > 0 ? fmt::format("  {}/{}", last.step, total_steps) : fmt::format("  step {}", last.step);
  numbers += fmt::format("  loss {:.4f}", last.loss);
  if (tokens > 0 && seconds > 0)
    numbers += fmt::format("  {} tokens/s", with_thousands(std::llround(tokens / seconds)));
  if (seconds > 0 && total_steps > 0) numbers += fmt::format("  eta {}", clock_time(remaining));
  if (total_steps < 1) return numbers.substr(2, std::max(0, columns - 1));
  const int width = std::clamp(columns - static_cast<int>(numbers.size()) - 1, 0, 40);
  const double share =
      std::clamp(static_cast<double>(last.step) / static_cast<double>(total_steps), 0.0, 1.0);
  const auto filled = static_cast<int>(static_cast<double>(width) * share);
  std::string bar;
  for (int cell = 0; cell < width; ++cell) bar += cell < filled ? "━" : "─";
  return bar + (width == 0 ? numbers.substr(2, std::max(0, columns - 1)) : numbers);
}

std::string sparkline(const std::vector<double>& values, int columns) {
  constexpr const char* kLevels[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  if (values.empty() || columns < 1) return "";
  const size_t cells = std::min(values.size(), static_cast<size_t>(columns));
  std::vector<double> means;
  for (size_t cell = 0; cell < cells; ++cell) {
    const size_t begin = values.size() * cell / cells, end = values.size() * (cell + 1) / cells;
    double sum = 0.0;
    for (size_t i = begin; i < end; ++i) sum += values[i];
    means.push_back(sum / static_cast<double>(end - begin));
  }
  const auto [low, high] = std::minmax_element(means.begin(), means.end());
  std::string line;
  for (const double mean : means) {
    const double share = *high > *low ? (mean - *low) / (*high - *low) : 0.0;
    // The clamp catches a NaN, too.
    line += kLevels[std::clamp(static_cast<int>(share * 7.999), 0, 7)];
  }
  return line;
}

std::string with_thousands(int64_t value) {
  const std::string digits = std::to_string(value);
  const size_t first_digit = value < 0 ? 1 : 0;
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > first_digit && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

std::string clock_time(double seconds) {
  const int64_t whole = seconds > 0 && seconds < 1e9 ? std::llround(seconds) : 0;
  if (whole >= 3600) return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{:02}:{:02}", whole / 60, whole % 60);
}

std::string bytes_text(int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024.0 && unit + 1 < std::size(kUnits)) {
    value /= 1024.0;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string rate_text(double bytes_per_second) {
  return bytes_text(static_cast<int64_t>(bytes_per_second)) + "/s";
}

}  // namespace shardrun::launcher
