// The lines of a run's metrics.jsonl, which rank 0 of the trainer or of a command appends to, and of its events.jsonl, which the conductor
// does. docs/formats.md has both. A line has those members of its struct that are known.
//
// Thread rule: plain values and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shardrun::record {

struct MetricsLine {
  std::optional<std::string>
      event;  // "first_barrier", "validation", "evaluation", "checkpoint"; none: a step
  std::optional<double> seconds, unix_time;
  std::optional<int64_t> step;
  std::optional<double> loss;
  std::optional<std::string> loss_hex;  // the exact double
  std::optional<double> learning_rate, grad_norm, unigram_entropy, tokens_per_second, step_seconds;
  std::optional<int64_t> resident_bytes;  // that rank 0 held in memory behind the step
  std::optional<std::string> set;         // the name of what was evaluated
  std::optional<std::string> path;        // of a checkpoint
  std::optional<double> stall_seconds, time;
  std::optional<int64_t> total_steps;  // how many there will be, of a command program
  int attempt = -1;                    // -1: of the newest, from a program that does not say
};

struct EventLine {
  double time = 0.0;
  // "attempt_started", "preflight", "node_excluded", "fault", "straggler", "strangers", "output_lost", "attempt_ended",
  // "queued_again", "taken_over"
  std::string event;
  int attempt = 0;
  std::optional<double> busy_seconds, bytes_per_second;
  std::optional<int> exit_code;
  std::optional<int64_t> global_batch;
  std::optional<int> global_rank;
  std::optional<int64_t> gradient_accumulation;
  std::optional<std::string> kind, line;
  std::optional<double> median_seconds;
  std::optional<std::string> next, node;
  std::optional<std::vector<std::string>> nodes;
  std::optional<std::string> reason;
  std::optional<double> seconds;
  std::optional<std::string> status;
  std::optional<double> usual_bytes_per_second;
  std::optional<std::string> verdict;
  std::optional<std::vector<std::string>> warnings;
  std::optional<int> world_size;
};

// One line, with its newline.
std::string to_json(const MetricsLine& line);
std::string to_json(const EventLine& line);

// Return the lines of `text` in their order. Left out are lines that are none (the last may be torn), and those of an
// attempt before `from_attempt` or before that of an earlier line: it had been replaced when it wrote them.
std::vector<MetricsLine> parse_metrics(std::string_view text, int from_attempt = 0);
std::vector<EventLine> parse_events(std::string_view text, int from_attempt = 0);

// Return the newest step in the whole lines of metrics.jsonl, that of the newest checkpoint that `attempt` wrote, and the newest
// line of an event.
std::optional<int64_t> last_step(std::string_view metrics);
std::optional<int64_t> last_checkpoint(std::string_view metrics, int attempt);
std::optional<MetricsLine> last_event(std::string_view metrics, std::string_view event);

// Return the beginning and the end of a file of lines, whole lines of at most 64 KiB and of `most_bytes`: what is of interest in a
// file that has grown for months. "" when it cannot be read.
std::string first_lines(const std::string& path);
std::string last_lines(const std::string& path, int64_t most_bytes = int64_t{64} << 20);

}  // namespace shardrun::record
