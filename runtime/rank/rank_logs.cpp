#include "runtime/rank/rank_logs.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "runtime/base/visible.h"

namespace shardrun::rank {
namespace {

base::UniqueFd open_log(const std::string& path) {
  return base::UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, record::kFileMode));
}

// A line of nothing but blanks and rulers does not count as last words.
bool says_something(std::string_view line) {
  return std::any_of(line.begin(), line.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || static_cast<unsigned char>(c) >= 0x80;
  });
}

}  // namespace

RankLogs::RankLogs(const record::RunDir& run_dir, const contract::RankEnv& env,
                   const std::vector<Secret>& secrets)
    : redactors_{Redactor(secrets), Redactor(secrets)},
      prefix_(fmt::format("{}:{} ", env.node_name, env.global_rank)) {
  const std::string node_path = run_dir.node_log(env.attempt, env.node_name);
  node_ = open_log(node_path);
  if (!node_ && errno == ENOENT && base::make_private_directory(run_dir.attempt(env.attempt))) {
    node_ = open_log(node_path);
  }
  if (!node_) lost_.error_number = errno;
  raw_[0] = open_log(run_dir.rank_out(env.attempt, env.global_rank));
  raw_[1] = open_log(run_dir.rank_err(env.attempt, env.global_rank));
  if (!raw_[0] || !raw_[1]) lost_.error_number = errno;
}

// Returns true when every byte was written. A full disk takes a part at best; the rest is not retried, because the
// next write would tear another rank's line.
bool RankLogs::write_file(int fd, std::string_view bytes) {
  ssize_t written = -1;
  if (fd >= 0) {
    do {
      written = ::write(fd, bytes.data(), bytes.size());
    } while (written < 0 && errno == EINTR);
  }
  if (written == static_cast<ssize_t>(bytes.size())) return true;
  if (fd >= 0) lost_.error_number = written < 0 ? errno : ENOSPC;
  return false;
}

void RankLogs::write_node_line(std::string_view text, std::chrono::system_clock::time_point time) {
  const std::string line = fmt::format("{} {}{}\n", format_utc(time), prefix_, base::visible(text));
  if (!write_file(node_.get(), line)) ++lost_.lines;
}

void RankLogs::write(Stream stream, std::string_view bytes) {
  redactors_[static_cast<size_t>(stream)].append(
      bytes, [&](std::string_view clean) { write_redacted(stream, clean); });
}

void RankLogs::write_redacted(Stream stream, std::string_view bytes) {
  const auto index = static_cast<size_t>(stream);
  if (!write_file(raw_[index].get(), bytes)) lost_.bytes += bytes.size();
  const auto now = std::chrono::system_clock::now();
  lines_[index].append(bytes, [&](std::string_view text) {
    if (stream == Stream::kErr && says_something(text)) last_error_line_.assign(text);
    write_node_line(text, now);
  });
}

void RankLogs::note(std::string_view text) {
  write_node_line(fmt::format("shardrun: {}", text), std::chrono::system_clock::now());
}

void RankLogs::finish() {
  for (const Stream stream : {Stream::kOut, Stream::kErr}) {
    redactors_[static_cast<size_t>(stream)].finish(
        [&](std::string_view clean) { write_redacted(stream, clean); });
  }
  const auto now = std::chrono::system_clock::now();
  for (NodeLines& lines : lines_) {
    lines.finish([&](std::string_view text) {
      if (&lines == &lines_[1] && says_something(text)) last_error_line_.assign(text);
      write_node_line(text, now);
    });
  }
  if (lost_.lines == 0 && lost_.bytes == 0) return;
  const std::string report =
      fmt::format("{} lines of the node log and {} bytes of the rank's own files were lost: {}", lost_.lines,
                  lost_.bytes, std::strerror(lost_.error_number));
  lost_ = Lost{};
  note(report);
  fmt::print(stderr, "shardrun-rank: {}{}\n", prefix_, report);
}

std::string RankLogs::last_words() const {
  constexpr size_t kLimitBytes = 500;
  const std::string_view pending = lines_[1].pending();
  std::string words = base::visible(says_something(pending) ? pending : std::string_view(last_error_line_));
  if (words.size() <= kLimitBytes) return words;
  size_t end = kLimitBytes;
  while (end > 0 && (static_cast<unsigned char>(words[end]) & 0xc0) == 0x80) --end;
  words.resize(end);
  return words;
}

}  // namespace shardrun::rank
