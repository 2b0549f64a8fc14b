#include "launcher/view/follower.h"

#include <algorithm>
#include <filesystem>
#include <iterator>

#include <fmt/format.h>

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

// Returns what takes a bar away. In a window that has become narrower since, it takes more than one row.
std::string erasing(const std::string& bar, int columns) {
  if (bar.empty()) return "";
  const auto width = std::count_if(bar.begin(), bar.end(),
                                   [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
  const auto rows_above = (width - 1) / std::max(columns, 1);
  return "\r" + (rows_above > 0 ? fmt::format("\x1b[{}A", rows_above) : "") + "\x1b[J";
}

}  // namespace

Follower::Follower(record::RunDir run, FollowOptions options, std::function<void(const std::string&)> print)
    : run_(std::move(run)), options_(std::move(options)), print_(std::move(print)) {}

void Follower::print_first(size_t count, const std::string& bar) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out += render(begun_[i], options_.terminal.colour) + "\n";
  begun_.erase(begun_.begin(), begun_.begin() + static_cast<std::ptrdiff_t>(count));
  if (out.empty() && bar == bar_) return;
  const std::string erase = erasing(bar_, options_.terminal.columns);
  bar_ = bar;
  print_(shown_on(options_.terminal, erase + out + bar));
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
    if (!options_.only_node.empty()) {
      std::erase_if(logs.segments, [&](const auto& entry) {
        std::string& node = nodes_[{attempt, entry.first}];
        if (node.empty()) node = node_of(run_, attempt, entry.first, entry.second.front());
        return !node.empty() && node != options_.only_node;
      });
    }
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
  if (options_.bar && options_.terminal.moves && !to_the_end) {
    add_metrics(files_.take_new(run_.metrics_jsonl(), false), curve_);
    if (options_.terminal_fd >= 0) options_.terminal.columns = terminal_columns(options_.terminal_fd);
    bar = render_progress(curve_, options_.total_steps, options_.terminal.columns);
  }
  print_first(to_the_end ? begun_.size() : old, bar);
}

void Follower::poll() {
  show(false);
}

void Follower::finish() {
  show(true);
}

}  // namespace shardrun::launcher
