#include "launcher/view/follower.h"

#include <sys/ioctl.h>

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "launcher/view/progress.h"

namespace shardrun::launcher {

namespace {

// Returns how many of the first groups get no copies from other ranks any more, after a line of the time `newest`; or
// have to do without, because too much waits.
size_t settled(const std::vector<LogGroup>& groups, const std::string& newest) {
  constexpr size_t kMostBytes = size_t{8} << 20;
  size_t bytes = 0, count = 0;
  for (const LogGroup& group : groups) bytes += group.first.text.size() + sizeof(LogGroup);
  while (count < groups.size() &&
         (bytes > kMostBytes || is_second_before(groups[count].first.time, newest))) {
    bytes -= groups[count].first.text.size() + sizeof(LogGroup);
    ++count;
  }
  return count;
}

}  // namespace

Follower::Follower(record::RunDir run, FollowOptions options, std::function<void(const std::string&)> print)
    : run_(std::move(run)), options_(std::move(options)), print_(std::move(print)) {}

void Follower::print_first(size_t count, const std::string& bar) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out += render(begun_[i], options_.terminal) + "\n";
  begun_.erase(begun_.begin(), begun_.begin() + static_cast<std::ptrdiff_t>(count));
  if (out.empty() && bar == bar_) return;
  const std::string erase = bar_.empty() ? "" : "\r\x1b[K";
  bar_ = bar;
  print_(erase + out + bar);
}

void Follower::show(bool to_the_end) {
  const auto wanted = [&](const LogLine& line) {
    return (options_.only_rank < 0 || line.global_rank == options_.only_rank) &&
           (options_.only_node.empty() || line.node == options_.only_node);
  };
  size_t old = begun_.size();  // these have waited for a whole look
  for (int attempt = 0; std::filesystem::exists(run_.attempt(attempt)); ++attempt) {
    AttemptLogs logs = find_logs(run_, attempt);
    if (options_.only_rank >= 0)
      std::erase_if(logs.segments, [&](const auto& entry) { return entry.first != options_.only_rank; });
    logs_.begin(run_, logs, to_the_end);
  }
  while (true) {
    std::vector<LogLine> lines = logs_.next(wanted);
    if (lines.empty()) break;
    const std::string newest = lines.back().time;
    begun_ = collapse(std::move(lines), std::move(begun_));
    const size_t count = settled(begun_, newest);
    if (count > 0) print_first(count, "");
    old -= std::min(old, count);
  }
  std::string bar;
  if (options_.terminal && options_.total_steps > 0 && !to_the_end) {
    add_metrics(files_.take_new(run_.metrics_jsonl(), false), curve_);
    bar = render_progress(curve_, options_.total_steps, options_.columns);
  }
  print_first(to_the_end ? begun_.size() : old, bar);
}

void Follower::poll() {
  show(false);
}

void Follower::finish() {
  show(true);
}

int terminal_columns(int fd) {
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace shardrun::launcher
