// Lines of ranks and node logs as people read them: parsed, put in time order, and equal lines of many ranks merged
// into one.
//
// A node log's line is "<UTC time> <node>:<global rank> <text>" (docs/formats.md).
// Thread rule: pure functions.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace shardrun::launcher {

struct LogLine {
  std::string time;  // "2026-01-31T12:00:00.123Z": sorts as text
  std::string node;
  int global_rank = 0;
  std::string text;
};

// Returns false for a line of another shape (a torn last line, say).
bool parse_log_line(std::string_view line, LogLine& out);

// Says whether the time of a line lies more than a second before another's.
bool is_second_before(const std::string& time, const std::string& other);

// What is shown in place of one or more lines.
struct LogGroup {
  LogLine first;
  std::set<int> ranks;  // ranks that wrote the same text within a second of it
};

// Puts lines into time order (lines of equal times keep theirs) behind `begun`, and folds those whose text is the
// same. A line may join a group of `begun`; these groups stay first.
std::vector<LogGroup> collapse(std::vector<LogLine> lines, std::vector<LogGroup> begun = {});

// Returns "[n1:0] text" or "[63 ranks] text"; with `colour`, the prefix is coloured by rank. Control bytes are
// escaped.
std::string render(const LogGroup& group, bool colour);

}  // namespace shardrun::launcher
