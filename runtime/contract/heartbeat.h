// Heartbeats: what a rank's program tells its supervisor, and the supervisor tells the conductor.
//
//   program ──ProgressPage (shared memory)──► supervisor ──one TCP connection a node, lines of text──► conductor
//
// The page is written with relaxed stores and costs the program nothing that can be measured. These are the lines:
//   supervisor:  hello 2 <global rank> <node>
//                beat <sequence> <phase> <step> <entered> <moves> <waiting> <state> <step µs> <busy µs> <quiet ms> <bytes>
//                bye
//                ranks <global rank> <beat …, or bye>;<global rank> …      what ranks of its node have said
//   conductor:   welcome
//                ack <sequence>
//                signal <number>
//                kill <reason>
//
// Whoever only wants to see what the conductor knows says `look 2` and gets a welcome, a line for each rank, and `end`:
//                rank <global rank> <heard> <left> <ms ago> <node> <the newest beat>
// The lines are sealed (sealed_lines.h): both sides prove that they can read the run's attempt_<n>/watch.json (mode 0600),
// which holds the attempt's key and where the conductor listens. docs/decisions/0014 and 0053 say why.
//
// Thread rule: values and pure functions; the page has one writing thread and any number of readers.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/io.h"
#include "runtime/base/result.h"

namespace shardrun::contract {

using base::Result;

inline constexpr double kBeatSeconds = 0.5;

enum class RankPhase : uint32_t {
  kStarting = 0,  // until the first step, or for good where we know of no steps in the program
  kStepping,
  kSaving,  // it waits for a checkpoint to be written
  kEnding,  // after the last step
};

// Lies in memory that supervisor and program share. Counters only grow.
struct ProgressPage {
  std::atomic<uint64_t> moves{0};    // counts anything done: a block's forward, a collective begun or ended
  std::atomic<uint64_t> entered{0};  // collectives begun; every rank begins the same ones in the same order
  std::atomic<uint32_t> waiting{0};  // 1 inside a wait for a collective
  std::atomic<uint32_t> phase{0};    // RankPhase
  std::atomic<int64_t> step{0};      // optimizer steps done
  std::atomic<int64_t> step_microseconds{0};   // how long the last step took
  std::atomic<int64_t> busy_microseconds{0};   // how long all steps took, without the waits
  std::atomic<int64_t> spent_microseconds{0};  // and with them
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// The page as a process sees it.
using SharedProgress = std::unique_ptr<ProgressPage, void (*)(ProgressPage*)>;
// Returns the descriptor of such a page's memory, closed on exec. kIo when the kernel has no memory.
Result<base::UniqueFd> make_shared_progress();
// The page behind that descriptor, in the process that made it and in one that inherited it. kIo.
Result<SharedProgress> open_shared_progress(int fd);
// The argument after which a supervisor gives its trainer its version and that descriptor.
inline constexpr const char* kTrainWord = "train";

struct Beat {
  uint64_t sequence = 0;
  RankPhase phase = RankPhase::kStarting;
  int64_t step = 0;
  uint64_t entered = 0, moves = 0;
  bool waiting = false;
  char state = '?';  // state of the program's process, as /proc/<pid>/stat has it: R, S, D, T, …
  int64_t step_microseconds = 0, busy_microseconds = 0;
  int64_t quiet_milliseconds = 0;  // time since the program wrote a line or touched its heartbeat file
  // Memory of the program and all below it; a page that they share counts for each.
  int64_t resident_bytes = 0;
};

struct Hello {
  int global_rank = 0;
  std::string node;
};

// What a rank said, as the supervisor that speaks for its node passes it on.
struct RankWord {
  int global_rank = 0;
  std::optional<Beat> beat;  // absent: its farewell
};

// What the conductor knows of one rank.
struct RankSight {
  int global_rank = 0;
  std::string node;
  bool heard = false;            // whether it was heard at least once
  bool left = false;             // its program has ended
  int64_t milliseconds_ago = 0;  // time since it was last heard
  Beat beat;                     // the newest beat
};

// The lines are written and read without their newline. nullopt: the line is malformed, or of another version.
std::string to_line(const Beat& beat);
std::string to_line(const Hello& hello);
std::optional<Beat> parse_beat(std::string_view line);
std::optional<Hello> parse_hello(std::string_view line);
// A line is read whole or not at all, and holds one word at least.
std::string to_line(std::span<const RankWord> words);
std::optional<std::vector<RankWord>> parse_rank_words(std::string_view line);
std::string to_line(const RankSight& sight);
std::optional<RankSight> parse_rank_sight(std::string_view line);
inline constexpr std::string_view kLookLine = "look 2";
inline constexpr std::string_view kWelcomeLine = "welcome";
inline constexpr std::string_view kEndLine = "end";
inline constexpr std::string_view kAreYouThereLine = "are you there";  // its kernel answers it
inline constexpr std::string_view kFarewellLine = "bye";
inline constexpr std::string_view kSignalOrder = "signal ", kKillOrder = "kill ";

// watch.json: where the conductor of an attempt listens.
struct WatchPlace {
  std::string key;  // 64 hexadecimal digits, random for each attempt; empty in files of format version 1
  uint16_t port = 0;
  std::vector<std::string> addresses;  // numeric addresses, tried in order
  double lease_seconds = 3.0;          // a supervisor that has heard nothing for so long ends its program
};
std::string to_json(const WatchPlace& place);
Result<WatchPlace> parse_watch_place(std::string_view json);

}  // namespace shardrun::contract
