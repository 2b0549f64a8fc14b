#include "runtime/record/output_marks.h"

#include <charconv>

#include <fmt/format.h>

namespace shardrun::record {
namespace {

constexpr std::string_view kMagic = "shardrun-times 1 ";
// Times past the year 9999 have no place in a line of a log.
constexpr int64_t kLatest = 253'402'300'799'999;

constexpr int64_t kMostBytes = int64_t{1} << 50;  // sums of some of them do not overflow

// Takes a count off the front of `text` with the blank behind it, unless `text` ends there.
std::optional<int64_t> take_count(std::string_view& text) {
  int64_t value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc() || value < 0 || value > kMostBytes) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  if (text.empty()) return value;
  if (text.front() != ' ') return std::nullopt;
  text.remove_prefix(1);
  return value;
}

}  // namespace

std::string to_line(const OutputHead& head) {
  return fmt::format("{}{} {} {}\n", kMagic, head.unix_milliseconds, head.bytes_before, head.node);
}

std::string to_line(const OutputMark& mark) {
  return fmt::format("{} {} {}\n", mark.unix_milliseconds, mark.out_bytes, mark.err_bytes);
}

std::optional<OutputHead> parse_output_head(std::string_view line) {
  if (!line.starts_with(kMagic)) return std::nullopt;
  line.remove_prefix(kMagic.size());
  const auto time = take_count(line);
  const auto before = time && *time <= kLatest ? take_count(line) : std::nullopt;
  if (!before || line.empty()) return std::nullopt;
  return OutputHead{*time, *before, std::string(line)};
}

std::optional<OutputMark> parse_output_mark(std::string_view line) {
  const auto time = take_count(line);
  const auto out = time && *time <= kLatest ? take_count(line) : std::nullopt;
  const auto err = out ? take_count(line) : std::nullopt;
  if (!err || !line.empty()) return std::nullopt;
  return OutputMark{*time, *out, *err};
}

}  // namespace shardrun::record
