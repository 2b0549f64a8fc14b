// Timeline: tells what happened to a run, in order, from what it left behind; `shardrun explain` prints it.
//
// Each attempt has its start and nodes, first barrier, first step, checkpoints, stragglers, the first cause of its
// end with how long its detection took, what ended because of it (collateral), and what followed.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/record/run_lines.h"
#include "runtime/record/run_record.h"

namespace shardrun::launcher {

// What metrics.jsonl says about the attempts of a run.
struct TrainingNotes {
  struct Attempt {
    std::optional<double> barrier, first_step, last_checkpoint;  // when
    int64_t first = 0, checkpoint = 0;                           // steps
    int checkpoints = 0;
  };
  std::map<int, Attempt> attempts;
  int newest = 0;  // the newest attempt so far

  // Adds the next whole lines of metrics.jsonl.
  void add(std::string_view lines);

 private:
  bool says_nothing(std::string_view line) const;
  void add_line(std::string_view line);
};

// What events.jsonl says about them, as far as a timeline tells it: the first lines of a run with very many.
struct EventNotes {
  static constexpr size_t kMost = 10'000;
  std::vector<record::EventLine> lines;
  int64_t left_out = 0;  // lines that came later
  int newest = 0;        // the newest attempt so far

  // Adds the next whole lines of events.jsonl.
  void add(std::string_view text);
};

struct TimelineSources {
  record::RunRecord record;
  std::string status;  // e.g. "running", "failed, exit code 1", or "interrupted" where its conductor is gone
  EventNotes events;
  TrainingNotes training;
  std::vector<std::vector<record::RankExit>> exits;  // exits of the record's attempts, in their order
};

struct TimelineEntry {
  enum class Mark { kNone, kFirstCause, kCollateral };
  double time = 0.0;  // Unix seconds
  int attempt = 0;
  Mark mark = Mark::kNone;
  std::string text;
  // What cannot come before the other whatever the clocks say, which may be set back while a run goes on.
  enum class Phase {
    kStart,
    kPreflight,
    kBarrier,
    kFirstStep,
    kTraining,
    kCause,
    kCollateral,
    kOver,
    kQueued
  };
  Phase phase = Phase::kTraining;
};

// Orders entries by attempt, by phase within each, and by time within a phase. Lines of an attempt after a later one has
// begun are left out.
std::vector<TimelineEntry> make_timeline(const TimelineSources& sources);
// Returns one line per entry: UTC time, seconds since the run began, attempt, text.
std::string render_timeline(const std::vector<TimelineEntry>& entries);
std::string timeline_json(const std::vector<TimelineEntry>& entries);

}  // namespace shardrun::launcher
