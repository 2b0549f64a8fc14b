#include "runtime/rank/rank_logs.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "runtime/base/visible.h"
#include "runtime/record/output_marks.h"

namespace shardrun::rank {
namespace {

constexpr int kSegments = 4;  // into which a rank's output is cut

int64_t unix_milliseconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

std::string mebibytes(int64_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
}

// Makes the folder of the attempt if it is missing.
base::UniqueFd open_log(const std::string& path, const std::string& attempt) {
  const auto open = [&path] {
    return base::UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, record::kFileMode));
  };
  base::UniqueFd fd = open();
  if (!fd && errno == ENOENT && base::make_private_directory(attempt)) fd = open();
  return fd;
}

// A line of nothing but blanks and rulers does not count as last words.
bool says_something(std::string_view line) {
  return std::any_of(line.begin(), line.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || static_cast<unsigned char>(c) >= 0x80;
  });
}

}  // namespace

RankLogs::RankLogs(const record::RunDir& run_dir, const contract::RankEnv& env,
                   const std::vector<Secret>& secrets, int64_t limit_bytes)
    : run_dir_(run_dir),
      env_(env),
      limit_bytes_(limit_bytes),
      redactors_{Redactor(secrets), Redactor(secrets)} {}

// Returns how many bytes were written. A full disk takes a part at best; the rest is not tried again.
int64_t RankLogs::write_file(int fd, std::string_view bytes) {
  ssize_t written = -1;
  if (fd >= 0) {
    do {
      written = ::write(fd, bytes.data(), bytes.size());
    } while (written < 0 && errno == EINTR);
    if (written != static_cast<ssize_t>(bytes.size())) lost_.error_number = written < 0 ? errno : ENOSPC;
  }
  return std::max<int64_t>(written, 0);
}

void RankLogs::write_times(std::string line) {
  if (torn_) line.insert(0, 1, '\n');
  const int64_t written = write_file(times_.get(), line);
  times_bytes_ += written;
  if (written > 0) torn_ = written < static_cast<int64_t>(line.size());
}

void RankLogs::begin_segment() {
  if (segment_ >= 0) {
    segment_bytes_.push_back(sizes_[0] + sizes_[1]);
    bytes_before_ += segment_bytes_.back();
  }
  ++segment_;
  if (segment_ >= kSegments) drop_segment(segment_ - kSegments + 1);
  const std::string attempt = run_dir_.attempt(env_.attempt);
  streams_[0] = open_log(run_dir_.rank_out(env_.attempt, env_.global_rank, segment_), attempt);
  streams_[1] = open_log(run_dir_.rank_err(env_.attempt, env_.global_rank, segment_), attempt);
  times_ = open_log(run_dir_.rank_times(env_.attempt, env_.global_rank, segment_), attempt);
  if (!streams_[0] || !streams_[1]) lost_.error_number = errno;
  sizes_ = {};
  times_bytes_ = 0;
  torn_ = false;
  write_times(record::to_line(record::OutputHead{unix_milliseconds(), bytes_before_, env_.node_name}));
}

void RankLogs::drop_segment(int segment) {
  cut_ += segment_bytes_[static_cast<size_t>(segment)];
  // The times go first: what has none is not looked for.
  for (const std::string& path : {run_dir_.rank_times(env_.attempt, env_.global_rank, segment),
                                  run_dir_.rank_out(env_.attempt, env_.global_rank, segment),
                                  run_dir_.rank_err(env_.attempt, env_.global_rank, segment)})
    (void)::unlink(path.c_str());
}

void RankLogs::write(Stream stream, std::string_view bytes) {
  redactors_[static_cast<size_t>(stream)].append(
      bytes, [&](std::string_view clean) { write_redacted(stream, clean); });
}

void RankLogs::write_redacted(Stream stream, std::string_view bytes) {
  const auto index = static_cast<size_t>(stream);
  if (segment_ < 0) begin_segment();
  const int64_t used = sizes_[0] + sizes_[1] + times_bytes_;
  if (limit_bytes_ > 0 && sizes_[0] + sizes_[1] > 0 &&
      used + static_cast<int64_t>(bytes.size()) > limit_bytes_ / kSegments)
    begin_segment();
  const int64_t written = write_file(streams_[index].get(), bytes);
  sizes_[index] += written;
  if (const std::string_view rest = bytes.substr(static_cast<size_t>(written)); !rest.empty()) {
    lost_.bytes += rest.size();
    lost_.lines += static_cast<uint64_t>(std::count(rest.begin(), rest.end(), '\n'));
  }
  if (written > 0)
    write_times(record::to_line(record::OutputMark{unix_milliseconds(), sizes_[0], sizes_[1]}));
  if (stream != Stream::kErr) return;
  error_lines_.append(bytes, [&](std::string_view text) {
    if (says_something(text)) last_error_line_.assign(text);
  });
}

void RankLogs::note(std::string_view text) {
  const std::string line =
      fmt::format("{} {}:{} {}\n", record::format_utc(std::chrono::system_clock::now()), env_.node_name,
                  env_.global_rank, base::visible(fmt::format("shardrun: {}", text)));
  if (!node_)
    node_ = open_log(run_dir_.node_log(env_.attempt, env_.node_name), run_dir_.attempt(env_.attempt));
  if (!node_) lost_.error_number = errno;
  if (write_file(node_.get(), line) < static_cast<int64_t>(line.size())) ++lost_.lines;
}

void RankLogs::finish() {
  for (const Stream stream : {Stream::kOut, Stream::kErr}) {
    redactors_[static_cast<size_t>(stream)].finish(
        [&](std::string_view clean) { write_redacted(stream, clean); });
  }
  error_lines_.finish([&](std::string_view text) {
    if (says_something(text)) last_error_line_.assign(text);
  });
  const std::string report = losses();
  if (report.empty()) return;
  note("its output " + report);
  fmt::print(stderr, "shardrun-rank: rank {} on node {}: its output {}\n", env_.global_rank, env_.node_name,
             report);
}

std::string RankLogs::losses() const {
  std::string words;
  if (cut_ > 0)
    words = fmt::format("was cut to {}: {} not kept ([logging] rank_limit_mib, run_limit_mib)",
                        mebibytes(limit_bytes_), mebibytes(cut_));
  if (lost_.lines == 0 && lost_.bytes == 0) return words;
  if (!words.empty()) words += "; it ";
  return words + fmt::format("lost {} lines ({} bytes): {}", lost_.lines, lost_.bytes,
                             std::strerror(lost_.error_number));
}

std::string RankLogs::last_words() const {
  constexpr size_t kLimitBytes = 500;
  const std::string_view pending = error_lines_.pending();
  std::string words = base::visible(says_something(pending) ? pending : std::string_view(last_error_line_));
  if (words.size() <= kLimitBytes) return words;
  size_t end = kLimitBytes;
  while (end > 0 && (static_cast<unsigned char>(words[end]) & 0xc0) == 0x80) --end;
  words.resize(end);
  return words;
}

}  // namespace shardrun::rank
