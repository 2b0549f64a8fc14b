#include "launcher/view/follower.h"

#include <sys/ioctl.h>

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "launcher/view/progress.h"

namespace shardrun::launcher {

Follower::Follower(record::RunDir run, FollowOptions options, std::function<void(const std::string&)> print)
    : run_(std::move(run)), options_(std::move(options)), print_(std::move(print)) {}

void Follower::show(bool to_the_end) {
  std::vector<LogLine> lines;
  for (int attempt = 0; std::filesystem::exists(run_.attempt(attempt)); ++attempt) {
    std::error_code gone;
    std::filesystem::directory_iterator entry(run_.attempt(attempt), gone), none;
    for (; !gone && entry != none; entry.increment(gone)) {
      if (entry->path().extension() != ".log") continue;
      const std::string text = files_.take_new(entry->path().string(), to_the_end);
      for (size_t begin = 0; begin < text.size();) {
        const size_t end = std::min(text.find('\n', begin), text.size());
        LogLine line;
        if (parse_log_line(std::string_view(text).substr(begin, end - begin), line) &&
            (options_.only_rank < 0 || line.global_rank == options_.only_rank) &&
            (options_.only_node.empty() || line.node == options_.only_node)) {
          lines.push_back(std::move(line));
        }
        begin = end + 1;
      }
    }
  }
  const size_t old = begun_.size();
  std::vector<LogGroup> groups = collapse(std::move(lines), std::move(begun_));
  const auto kept = to_the_end ? groups.end() : groups.begin() + static_cast<std::ptrdiff_t>(old);
  begun_.assign(std::make_move_iterator(kept), std::make_move_iterator(groups.end()));
  groups.erase(kept, groups.end());
  std::string out;
  for (const LogGroup& group : groups) out += render(group, options_.terminal) + "\n";
  std::string bar;
  if (options_.terminal && options_.total_steps > 0 && !to_the_end) {
    add_metrics(files_.take_new(run_.metrics_jsonl(), false), curve_);
    bar = render_progress(curve_, options_.total_steps, options_.columns);
  }
  if (out.empty() && bar == bar_) return;
  const std::string erase = bar_.empty() ? "" : "\r\x1b[K";
  bar_ = bar;
  print_(erase + out + bar);
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
