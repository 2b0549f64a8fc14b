#include "runtime/rank/rank_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "runtime/record/output_marks.h"

namespace shardrun::rank {
namespace {

constexpr int kSegments = 4;  // into which a rank's output is cut

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

}  // namespace

// Returns how many bytes were written. A full disk takes a part at best; the rest is not tried again.
int64_t RankFiles::write_file(int fd, std::string_view bytes) {
  ssize_t written = -1;
  if (fd >= 0) {
    do {
      written = ::write(fd, bytes.data(), bytes.size());
    } while (written < 0 && errno == EINTR);
    if (written != static_cast<ssize_t>(bytes.size())) lost_.error_number = written < 0 ? errno : ENOSPC;
  }
  return std::max<int64_t>(written, 0);
}

void RankFiles::write_times(std::string line) {
  if (torn_) line.insert(0, 1, '\n');
  const int64_t written = write_file(times_.get(), line);
  times_bytes_ += written;
  if (written > 0) torn_ = written < static_cast<int64_t>(line.size());
}

void RankFiles::begin_segment(int64_t unix_milliseconds) {
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
  write_times(record::to_line(record::OutputHead{unix_milliseconds, bytes_before_, env_.node_name}));
}

void RankFiles::drop_segment(int segment) {
  cut_ += segment_bytes_[static_cast<size_t>(segment)];
  // The times go first: what has none is not looked for.
  for (const std::string& path : {run_dir_.rank_times(env_.attempt, env_.global_rank, segment),
                                  run_dir_.rank_out(env_.attempt, env_.global_rank, segment),
                                  run_dir_.rank_err(env_.attempt, env_.global_rank, segment)})
    (void)::unlink(path.c_str());
}

void RankFiles::write(Stream stream, std::string_view bytes, int64_t unix_milliseconds) {
  const auto index = static_cast<size_t>(stream);
  if (segment_ < 0) begin_segment(unix_milliseconds);
  const int64_t used = sizes_[0] + sizes_[1] + times_bytes_;
  if (limit_bytes_ > 0 && sizes_[0] + sizes_[1] > 0 &&
      used + static_cast<int64_t>(bytes.size()) > limit_bytes_ / kSegments)
    begin_segment(unix_milliseconds);
  const int64_t written = write_file(streams_[index].get(), bytes);
  sizes_[index] += written;
  if (const std::string_view rest = bytes.substr(static_cast<size_t>(written)); !rest.empty()) {
    lost_.bytes += rest.size();
    lost_.lines += static_cast<uint64_t>(std::count(rest.begin(), rest.end(), '\n'));
  }
  if (written > 0) write_times(record::to_line(record::OutputMark{unix_milliseconds, sizes_[0], sizes_[1]}));
}

void RankFiles::note(std::string_view line) {
  if (!node_)
    node_ = open_log(run_dir_.node_log(env_.attempt, env_.node_name), run_dir_.attempt(env_.attempt));
  if (!node_) lost_.error_number = errno;
  if (write_file(node_.get(), line) < static_cast<int64_t>(line.size())) ++lost_.lines;
}

std::string RankFiles::losses() const {
  std::string words;
  if (cut_ > 0)
    words = fmt::format("was cut to {}: {} not kept ([logging] rank_limit_mib, run_limit_mib)",
                        mebibytes(limit_bytes_), mebibytes(cut_));
  if (lost_.lines == 0 && lost_.bytes == 0) return words;
  if (!words.empty()) words += "; it ";
  return words + fmt::format("lost {} lines ({} bytes): {}", lost_.lines, lost_.bytes,
                             std::strerror(lost_.error_number));
}

}  // namespace shardrun::rank
