// RankOutput: what one rank wrote in an attempt, as lines with their times, in memory that does not grow with it.
//
// It reads rank_<g>.out and .err in the order that rank_<g>.times gives (runtime/record/output_marks.h), segment after
// segment; between two pieces no file is open. Where segments were taken away, a line says how much is missing.
//
// Thread rule: thread-compatible.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "launcher/view/growing_text.h"
#include "launcher/view/log_lines.h"
#include "runtime/record/node_lines.h"
#include "runtime/record/run_dir.h"

namespace shardrun::launcher {

// The files that hold the lines of an attempt.
struct AttemptLogs {
  int attempt = 0;
  std::vector<std::string> node_logs;        // paths; of an earlier version, these have the ranks' lines, too
  std::map<int, std::vector<int>> segments;  // of each rank's output, ascending
};
// Returns what there is now.
AttemptLogs find_logs(const record::RunDir& run, int attempt);

// Returns the node on which a rank wrote this segment; "" where its times do not say yet.
std::string node_of(const record::RunDir& run, int attempt, int global_rank, int segment);

class RankOutput {
 public:
  RankOutput(record::RunDir run, int attempt, int global_rank)
      : run_(std::move(run)), attempt_(attempt), global_rank_(global_rank) {}

  // Begins a look, with the segments that find_logs() has found just now. With `to_the_end` no more comes: a last line without
  // its end counts.
  void see(std::vector<int> segments, bool to_the_end);
  // Returns false when there is no further line for now.
  bool next(LogLine& line);

 private:
  bool read_more();
  bool read_piece(size_t stream);
  void read_ahead(size_t stream);
  bool take_mark();
  void take_rest();
  void enter(int segment);
  void end_lines();
  void add_line(std::string_view text);

  record::RunDir run_;
  int attempt_, global_rank_;
  std::vector<int> segments_;
  bool to_the_end_ = false, is_over_ = false;
  int segment_ = -1;         // the one that is read
  bool rest_taken_ = false;  // what lies behind its last mark, too
  GrowingText times_;
  std::string marks_;  // a piece of its times
  size_t marks_at_ = 0;
  int64_t consumed_ = 0;                   // output in the segments before it
  std::array<int64_t, 2> at_{}, until_{};  // of its .out and .err: what was read, and what may be
  std::array<int64_t, 2> marked_{};   // how far the marks go that are in marks_: nothing behind them is read
  std::array<std::string, 2> ahead_;  // what was read from at_ on
  std::array<record::NodeLines, 2> lines_;
  std::string node_ = "?", time_;
  std::deque<LogLine> ready_;
};

}  // namespace shardrun::launcher
