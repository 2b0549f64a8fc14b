#include "launcher/view/follower.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>

#include "launcher/view/progress.h"
#include "runtime/base/io.h"

namespace shardrun::launcher {

Follower::Follower(contract::RunDir run, FollowOptions options, std::function<void(const std::string&)> print)
    : run_(std::move(run)), options_(std::move(options)), print_(std::move(print)) {}

// The bytes of `path` since the last call, up to the last newline unless `to_the_end`.
std::string Follower::take_new(const std::string& path, bool to_the_end) {
  base::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return "";
  int64_t& offset = offsets_[path];
  std::string text;
  std::array<char, 65536> chunk;
  ssize_t got = 0;
  while ((got = ::pread(fd.get(), chunk.data(), chunk.size(), offset + static_cast<int64_t>(text.size()))) >
         0) {
    text.append(chunk.data(), static_cast<size_t>(got));
  }
  if (!to_the_end) text.resize(text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1);
  offset += static_cast<int64_t>(text.size());
  return text;
}

void Follower::show(bool to_the_end) {
  std::vector<LogLine> lines;
  for (int attempt = 0; std::filesystem::exists(run_.attempt(attempt)); ++attempt) {
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(run_.attempt(attempt), ignored)) {
      if (entry.path().extension() != ".log") continue;
      const std::string text = take_new(entry.path().string(), to_the_end);
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
    add_metrics(take_new(run_.metrics_jsonl(), false), curve_);
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
