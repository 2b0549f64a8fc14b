// LogMerge: the lines of many ranks and node logs in time order, in memory that does not grow with them.
//
// Of each source it holds a piece, and reads the next one when that is used up; between two pieces no file is open. Times inside
// a source may go back a little, as a clock that is set and ranks that share a node log do: lines come in the order of the
// oldest next line of all sources.
//
// Thread rule: thread-compatible.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launcher/view/growing_text.h"
#include "launcher/view/log_lines.h"
#include "launcher/view/rank_output.h"

namespace shardrun::launcher {

class LogMerge {
 public:
  static constexpr int64_t kPieceBytes = int64_t{64} << 10;
  static constexpr int64_t kBatchBytes = int64_t{2} << 20;

  // Begins a look at node logs, or at what there is of one attempt: sources that had no more lines at the look before are asked
  // again. With `to_the_end`, a last line without a newline counts, too.
  void begin(const std::vector<std::string>& node_logs, bool to_the_end);
  void begin(const record::RunDir& run, const AttemptLogs& logs, bool to_the_end);
  // Returns the next lines for which `wanted` holds, about kBatchBytes of text; none when all files are at their ends.
  std::vector<LogLine> next(const std::function<bool(const LogLine&)>& wanted);

 private:
  struct Source {
    int number = 0;  // of lines of the same time, those of the source that was found first come first
    std::optional<RankOutput> output;  // else it is a node log
    std::string text;                  // a piece of the file
    size_t at = 0;                     // where its next line begins
    LogLine head;                      // the line before that, if there is one
    bool has_head = false, is_dry = false;
  };
  Source& find(const std::string& path);
  void advance(const std::string& path, Source& source, const std::function<bool(const LogLine&)>& wanted);

  GrowingText files_;
  std::map<std::string, Source> sources_;
  bool to_the_end_ = false;
};

}  // namespace shardrun::launcher
