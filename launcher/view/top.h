// Top: shows the ranks of a running job as a screen or as plain text.
//
// With more ranks than rows there is one row for each node, and with more nodes than rows those come first that
// need attention: nodes in trouble, then nodes that are behind.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/view/metrics_log.h"
#include "runtime/contract/heartbeat.h"

namespace shardrun::launcher {

struct TopRank {
  int global_rank = 0;
  std::string node;
  std::string state;     // a word or two
  bool trouble = false;  // somebody should look
  std::optional<int64_t> step;
  std::optional<double> step_seconds;  // those of the last step
  std::optional<double> busy_seconds;  // the average of a step, without waits for others
  std::optional<int64_t> memory_bytes;
  std::string last_line;  // the last line of its output
};

struct TopView {
  std::string title;
  TrainingCurve curve;
  int64_t total_steps = 0;  // 0: a program whose steps we do not know
  std::vector<TopRank> ranks;
  std::string note;  // why something is missing; empty if nothing is
};

// Describes what is known of a rank. `trainer` says whether its steps are known, `first_step` which was the first of this attempt,
// for a rank counts its busy time from there on; nullopt: not known, and so is that of a step.
TopRank describe(const contract::RankSight& sight, bool trainer, std::optional<int64_t> first_step);

struct TopSize {
  int columns = 0, rows = 0;  // 0: unlimited
  bool colour = false;        // trouble is shown in red
};
// Returns lines, each with its newline.
std::string render_top(const TopView& view, const TopSize& size);
// Returns one object; what is not known is null.
std::string to_json(const TopView& view);

}  // namespace shardrun::launcher
