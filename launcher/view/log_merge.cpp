#include "launcher/view/log_merge.h"

#include <algorithm>
#include <queue>
#include <string_view>
#include <tuple>
#include <utility>

namespace shardrun::launcher {

LogMerge::Source& LogMerge::find(const std::string& path) {
  const auto [source, is_new] = sources_.try_emplace(path);
  if (is_new) source->second.number = static_cast<int>(sources_.size());
  source->second.is_dry = false;
  return source->second;
}

void LogMerge::begin(const std::vector<std::string>& node_logs, bool to_the_end) {
  to_the_end_ = to_the_end;
  for (const std::string& path : node_logs) (void)find(path);
}

void LogMerge::begin(const record::RunDir& run, const AttemptLogs& logs, bool to_the_end) {
  begin(logs.node_logs, to_the_end);
  for (const auto& [rank, segments] : logs.segments) {
    Source& source = find(run.rank_times(logs.attempt, rank));
    if (!source.output) source.output.emplace(run, logs.attempt, rank);
    source.output->see(segments, to_the_end);
  }
}

// Makes the next wanted line of a file its head.
void LogMerge::advance(const std::string& path, Source& source,
                       const std::function<bool(const LogLine&)>& wanted) {
  source.has_head = false;
  while (source.output && !source.has_head) {
    if (!source.output->next(source.head)) return;
    source.has_head = wanted(source.head);
  }
  while (!source.is_dry && !source.has_head) {
    if (source.at >= source.text.size()) {
      source.text = files_.take_new(path, to_the_end_, kPieceBytes);
      source.at = 0;
      source.is_dry = source.text.empty();
      continue;
    }
    const size_t end = std::min(source.text.find('\n', source.at), source.text.size());
    const std::string_view line = std::string_view(source.text).substr(source.at, end - source.at);
    source.at = end + 1;
    source.has_head = parse_log_line(line, source.head) && wanted(source.head);
  }
}

std::vector<LogLine> LogMerge::next(const std::function<bool(const LogLine&)>& wanted) {
  using Entry =
      std::tuple<std::string, int, const std::string*>;  // a time, and the number and path of its file
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> heads;
  const auto enter = [&](const std::string& path, Source& source) {
    if (!source.has_head) advance(path, source, wanted);
    if (source.has_head) heads.emplace(source.head.time, source.number, &path);
  };
  for (auto& [path, source] : sources_) enter(path, source);
  std::vector<LogLine> lines;
  int64_t bytes = 0;
  while (!heads.empty() && bytes < kBatchBytes) {
    const std::string& path = *std::get<2>(heads.top());
    heads.pop();
    Source& source = sources_.find(path)->second;
    bytes += static_cast<int64_t>(source.head.text.size() + sizeof(LogLine));
    lines.push_back(std::exchange(source.head, LogLine{}));
    source.has_head = false;
    enter(path, source);
  }
  return lines;
}

}  // namespace shardrun::launcher
