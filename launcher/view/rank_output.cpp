#include "launcher/view/rank_output.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "launcher/view/progress.h"
#include "runtime/base/io.h"
#include "runtime/record/output_marks.h"

namespace shardrun::launcher {
namespace {

constexpr int64_t kTimesPiece = 4 << 10, kOutputPiece = 16 << 10;

// Takes a number off the front of `text`.
std::optional<int> take_number(std::string_view& text) {
  int number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc() || number < 0) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}

// Adds "rank_<g>.times" or "rank_<g>.<k>.times".
void add_segment(std::string_view name, AttemptLogs& logs) {
  constexpr std::string_view kPrefix = "rank_", kSuffix = ".times";
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return;
  name.remove_prefix(kPrefix.size());
  name.remove_suffix(std::min(kSuffix.size(), name.size()));
  const auto rank = take_number(name);
  int segment = 0;
  if (rank && name.starts_with(".")) {
    name.remove_prefix(1);
    segment = take_number(name).value_or(-1);
  }
  if (rank && name.empty() && segment >= 0) logs.segments[*rank].push_back(segment);
}

std::string utc(int64_t unix_milliseconds) {
  return record::format_utc(
      std::chrono::system_clock::time_point(std::chrono::milliseconds(unix_milliseconds)));
}

int64_t size_of(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? int64_t{status.st_size} : 0;
}

}  // namespace

AttemptLogs find_logs(const record::RunDir& run, int attempt) {
  AttemptLogs logs;
  logs.attempt = attempt;
  std::error_code gone;
  std::filesystem::directory_iterator entry(run.attempt(attempt), gone), none;
  for (; !gone && entry != none; entry.increment(gone)) {
    if (entry->path().extension() == ".log") logs.node_logs.push_back(entry->path().string());
    add_segment(entry->path().filename().string(), logs);
  }
  for (auto& [rank, segments] : logs.segments) std::sort(segments.begin(), segments.end());
  return logs;
}

std::string node_of(const record::RunDir& run, int attempt, int global_rank, int segment) {
  std::array<char, 512> text;
  const auto fd = base::open_to_read(run.rank_times(attempt, global_rank, segment));
  const ssize_t got = fd ? ::pread(fd->get(), text.data(), text.size(), 0) : -1;
  if (got <= 0) return "";
  const std::string_view begin(text.data(), static_cast<size_t>(got));
  const size_t end = begin.find('\n');
  if (end == std::string_view::npos) return "";
  const auto head = record::parse_output_head(begin.substr(0, end));
  return head ? head->node : "";
}

void RankOutput::see(std::vector<int> segments, bool to_the_end) {
  segments_ = std::move(segments);
  to_the_end_ = to_the_end;
}

bool RankOutput::next(LogLine& line) {
  while (ready_.empty())
    if (!read_more()) return false;
  line = std::move(ready_.front());
  ready_.pop_front();
  return true;
}

// Returns false when there is nothing to do for now.
bool RankOutput::read_more() {
  if (segment_ >= 0) {
    for (const size_t stream : {0, 1})
      if (at_[stream] < until_[stream]) return read_piece(stream);
    if (take_mark()) return true;
  }
  // The files were listed before these marks were read: a segment that has a later one is complete.
  const auto later =
      std::find_if(segments_.begin(), segments_.end(), [&](int one) { return one > segment_; });
  if (segment_ >= 0 && !rest_taken_ && (later != segments_.end() || to_the_end_)) {
    take_rest();
    return true;
  }
  if (later != segments_.end()) {
    enter(*later);
    return true;
  }
  if (!to_the_end_ || is_over_) return false;
  is_over_ = true;
  end_lines();
  return true;
}

bool RankOutput::read_piece(size_t stream) {
  if (ahead_[stream].empty()) read_ahead(stream);
  if (ahead_[stream].empty()) {
    at_[stream] = until_[stream];  // the file was taken away, or never got what its mark says
    return true;
  }
  const std::string piece = ahead_[stream].substr(0, static_cast<size_t>(until_[stream] - at_[stream]));
  ahead_[stream].erase(0, piece.size());
  at_[stream] += static_cast<int64_t>(piece.size());
  lines_[stream].append(piece, [&](std::string_view text) { add_line(text); });
  return true;
}

// A rank that writes line by line has a mark for each, and a file of a file server takes far longer to open than to read.
void RankOutput::read_ahead(size_t stream) {
  const std::string path = stream == 0 ? run_.rank_out(attempt_, global_rank_, segment_)
                                       : run_.rank_err(attempt_, global_rank_, segment_);
  const int64_t last = std::max(until_[stream], marked_[stream]);
  std::string& ahead = ahead_[stream];
  ahead.resize(static_cast<size_t>(std::min(kOutputPiece, last - at_[stream])));
  const auto fd = base::open_to_read(path);
  const ssize_t got = fd ? ::pread(fd->get(), ahead.data(), ahead.size(), at_[stream]) : -1;
  ahead.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
}

bool RankOutput::take_mark() {
  if (marks_at_ >= marks_.size()) {
    marks_ = times_.take_new(run_.rank_times(attempt_, global_rank_, segment_), false, kTimesPiece);
    marks_at_ = 0;
    if (marks_.empty()) return false;
    const std::string_view whole = std::string_view(marks_).substr(0, marks_.size() - 1);
    if (const auto last = record::parse_output_mark(whole.substr(whole.rfind('\n') + 1)))
      marked_ = {last->out_bytes, last->err_bytes};
  }
  const size_t end = std::min(marks_.find('\n', marks_at_), marks_.size());
  const std::string_view line = std::string_view(marks_).substr(marks_at_, end - marks_at_);
  marks_at_ = end + 1;
  if (const auto mark = record::parse_output_mark(line)) {
    time_ = utc(mark->unix_milliseconds);
    until_ = {std::max(until_[0], mark->out_bytes), std::max(until_[1], mark->err_bytes)};
  } else if (const auto head = record::parse_output_head(line)) {
    time_ = utc(head->unix_milliseconds);
    node_ = head->node;
    if (const int64_t missing = head->bytes_before - consumed_; missing > 0) {
      end_lines();
      add_line(fmt::format("shardrun: {} of the output were not kept here", bytes_text(missing)));
    }
    consumed_ = head->bytes_before;
  }
  return true;
}

void RankOutput::take_rest() {
  rest_taken_ = true;
  if (time_.empty()) time_ = utc(0);
  until_ = {std::max(until_[0], size_of(run_.rank_out(attempt_, global_rank_, segment_))),
            std::max(until_[1], size_of(run_.rank_err(attempt_, global_rank_, segment_)))};
}

void RankOutput::enter(int segment) {
  consumed_ += at_[0] + at_[1];
  segment_ = segment;
  rest_taken_ = false;
  times_ = {};
  marks_.clear();
  marks_at_ = 0;
  at_ = until_ = marked_ = {};
  ahead_ = {};
}

void RankOutput::end_lines() {
  for (record::NodeLines& lines : lines_) lines.finish([&](std::string_view text) { add_line(text); });
}

void RankOutput::add_line(std::string_view text) {
  ready_.push_back({time_, node_, global_rank_, std::string(text)});
}

}  // namespace shardrun::launcher
