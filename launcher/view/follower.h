// Follower: shows a run as it goes: the lines of all ranks and node logs, and a progress bar on a terminal.
//
// Its memory does not grow with the logs: lines are merged and printed in pieces, and wait for their copies from other
// ranks for a second of the log's time. It only reads files of the run directory, so it works alike for a local run, a
// Slurm job and somebody else's run.
//
// Thread rule: thread-compatible; poll() may be called by a thread of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "launcher/view/growing_text.h"
#include "launcher/view/log_lines.h"
#include "launcher/view/log_merge.h"
#include "launcher/view/metrics_log.h"
#include "launcher/view/terminal.h"
#include "runtime/record/run_dir.h"

namespace shardrun::launcher {

struct FollowOptions {
  Terminal terminal;        // of a terminal whose cursor moves, the last line is the bar
  int terminal_fd = -1;     // whose width is asked for again before each drawing; -1: it stays
  bool bar = false;         // whether a bar is wanted at all
  int64_t total_steps = 0;  // 0: what a command program says
  int only_rank = -1;
  std::string only_node;
};

class Follower {
 public:
  // `print` receives whole pieces of output for stdout.
  Follower(record::RunDir run, FollowOptions options, std::function<void(const std::string&)> print);

  // Shows what has come since the last call; lines that are still being written wait for their end, and new ones
  // for the next call, in which copies from other ranks may come.
  void poll();
  // Is the last poll: also shows unfinished lines, and removes the bar.
  void finish();

 private:
  void show(bool to_the_end);
  void print_first(size_t count, const std::string& bar);

  record::RunDir run_;
  FollowOptions options_;
  std::function<void(const std::string&)> print_;
  LogMerge logs_;
  GrowingText files_;
  std::map<std::pair<int, int>, std::string> nodes_;  // of the ranks of an attempt, where only one is wanted
  std::vector<LogGroup> begun_;                       // those not shown yet
  TrainingCurve curve_;
  std::string bar_;
};

}  // namespace shardrun::launcher
