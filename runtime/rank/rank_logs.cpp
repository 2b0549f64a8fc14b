#include "runtime/rank/rank_logs.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include <fmt/format.h>

#include "runtime/base/threads.h"
#include "runtime/base/visible.h"

namespace shardrun::rank {
namespace {

int64_t unix_milliseconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
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
    : env_(env),
      redactors_{Redactor(secrets), Redactor(secrets)},
      room_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      files_(run_dir, env, limit_bytes) {}

RankLogs::~RankLogs() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void RankLogs::file(const Piece& piece) {
  if (piece.stream)
    files_.write(*piece.stream, piece.bytes, piece.unix_milliseconds);
  else
    files_.note(piece.bytes);
  std::string losses = files_.losses();
  const std::lock_guard lock(mutex_);
  losses_ = std::move(losses);
}

void RankLogs::file_until_stopped() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stops_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const std::vector<Piece> pieces = std::exchange(waiting_, {});
    is_filing_ = true;
    lock.unlock();
    size_t bytes = 0;
    for (const Piece& piece : pieces) {
      file(piece);
      bytes += piece.bytes.size();
    }
    lock.lock();
    is_filing_ = false;
    const bool was_full = waiting_bytes_ >= kWaitingBytes;
    waiting_bytes_ -= bytes;
    if (was_full && waiting_bytes_ < kWaitingBytes) ::eventfd_write(room_.get(), 1);
    changed_.notify_all();
  }
}

void RankLogs::add(Piece piece) {
  if (!base::start_thread(thread_, [this] { file_until_stopped(); })) return file(piece);
  {
    const std::lock_guard lock(mutex_);
    waiting_bytes_ += piece.bytes.size();
    waiting_.push_back(std::move(piece));
  }
  changed_.notify_all();
}

bool RankLogs::has_room() {
  eventfd_t told = 0;
  ::eventfd_read(room_.get(), &told);
  const std::lock_guard lock(mutex_);
  return waiting_bytes_ < kWaitingBytes;
}

void RankLogs::write(Stream stream, std::string_view bytes) {
  redactors_[static_cast<size_t>(stream)].append(bytes,
                                                 [&](std::string_view clean) { write_clean(stream, clean); });
}

void RankLogs::write_clean(Stream stream, std::string_view bytes) {
  add({stream, std::string(bytes), unix_milliseconds()});
  if (stream != Stream::kErr) return;
  error_lines_.append(bytes, [&](std::string_view text) {
    if (says_something(text)) last_error_line_.assign(text);
  });
}

void RankLogs::note(std::string_view text) {
  add({std::nullopt,
       fmt::format("{} {}:{} {}\n", record::format_utc(std::chrono::system_clock::now()), env_.node_name,
                   env_.global_rank, base::visible(fmt::format("shardrun: {}", text)))});
}

void RankLogs::finish() {
  for (const Stream stream : {Stream::kOut, Stream::kErr}) {
    redactors_[static_cast<size_t>(stream)].finish(
        [&](std::string_view clean) { write_clean(stream, clean); });
  }
  error_lines_.finish([&](std::string_view text) {
    if (says_something(text)) last_error_line_.assign(text);
  });
  std::string report;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return waiting_.empty() && !is_filing_; });
    report = losses_;
  }
  if (report.empty()) return;
  note("its output " + report);
  fmt::print(stderr, "shardrun-rank: rank {} on node {}: its output {}\n", env_.global_rank, env_.node_name,
             report);
}

std::string RankLogs::losses(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, patience, [this] { return waiting_.empty() && !is_filing_; });
  return losses_;
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
