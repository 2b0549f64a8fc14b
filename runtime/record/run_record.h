// RunRecord: record.json, the versioned account of one run, and the small files the ranks leave for it.
//
// The conductor (launcher/agent) owns record.json and replaces it atomically. Each rank's supervisor
// leaves a line (exit_lines.h); rank 0 of the trainer leaves summary.json. docs/formats.md has the fields.
//
// Thread rule: plain values.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/plan/model_plan.h"
#include "runtime/plan/utilization.h"
#include "runtime/record/launch_plan.h"
#include "runtime/record/preflight.h"
#include "runtime/record/run_dir.h"

namespace shardrun::record {

using base::Result;

// How one rank ended. Told by shardrun-rank's supervisor the moment it reaped its program (exit_lines.h).
struct RankExit {
  int global_rank = 0;
  std::string node;
  double ended = 0.0;               // Unix seconds
  std::optional<int> exit_code;     // of a program that exited
  std::optional<int> signal;        // of a program that a signal ended
  bool peer_lost = false;           // it only failed because another rank was gone: collateral
  bool stopped_on_request = false;  // we had forwarded a stop signal to it before
  int64_t peak_memory_bytes = 0;    // highest resident set of the program
  // How long its steps took together, and how long it waited for other ranks in them; of a program that tells us of them.
  std::optional<double> steps_seconds, waiting_seconds;
  // Whether the kernel killed something of its cgroup for lack of memory; unknown: it has no cgroup.
  std::optional<bool> out_of_memory;
  // What was not kept of its output until then, in words.
  std::optional<std::string> output_losses;
  std::string last_words;  // the error line it reported, if any; at most 500 bytes
};

// What was said of a run before it started (launcher/forecast), beside which the record keeps what was measured.
struct Prediction {
  std::optional<double> step_seconds, tokens_per_second;
  std::optional<std::vector<double>> step_interval;      // the two ends between which four of five steps lie
  std::optional<std::vector<std::string>> learned_from;  // directories of earlier runs that moved it
  std::optional<double> basis_seconds;                   // of a step, before they did
  std::optional<int64_t> memory_bytes;                   // of the rank that holds most, at its peak
  std::string basis;                                     // the calibration, or "published runs"
  std::string unknown_because;                           // why there is no step_seconds; empty: there is
  std::vector<plan::PeakRate> peaks;                     // of a rank; what was measured first
};

// The evaluation with the lowest validation loss, of a run that goes by it.
struct BestEvaluation {
  int64_t step = 0;
  double loss = 0.0;
  std::string checkpoint;  // its path, where it is kept
};

// What the trainer reports at its end; also what `shardrun results` prints.
struct TrainingMetrics {
  int64_t steps = 0;
  std::optional<double> first_loss, final_loss, validation_loss, unigram_entropy;
  std::optional<std::map<std::string, double>> evaluation_losses;  // of each set of [evaluation]
  std::optional<BestEvaluation> best;
  std::optional<std::string> ended_early;  // why there are fewer steps than were asked for, in words
  double tokens_per_second = 0.0;
  std::optional<double> median_tokens_per_second, peak_tokens_per_second;  // of single steps
  std::optional<double> steps_seconds;  // all steps of the attempt together
  double step_seconds_p50 = 0.0, step_seconds_p99 = 0.0;
  plan::FlopsPerToken flops_per_token;
  std::vector<plan::Utilization> utilization;   // by the launcher, of each peak that it knows
  std::string checkpoint;                       // the newest one, absolute; empty if none
  double first_barrier_seconds = 0.0;           // from SHARDRUN_LAUNCH_TIME to the end of the first barrier
  plan::MemoryPlan planned;                     // per rank, from before step 0
  std::map<std::string, std::string> versions;  // "libfabric": "1.17.0", …
};

struct FirstCause {
  // "signal", "exit", "out_of_memory", "peer_lost", "hang", "node_lost", "preflight", "scheduler", "timeout", "refused".
  std::string kind;
  std::string node;
  std::optional<int> global_rank, signal, exit_code;
};

// A rank that was busy longer than the others in every step, for long.
struct StragglerNote {
  int global_rank = 0;
  std::string node;
  double busy_seconds = 0.0, median_seconds = 0.0;  // a step
};

struct Attempt {
  int number = 0;  // of its folder attempt_<n>; also its epoch
  double started = 0.0;
  std::optional<double> ended;
  std::optional<FirstCause> first_cause;
  std::string verdict;                 // the attempt's own line, once it has ended
  std::vector<std::string> nodes;      // in node_index order
  int world_size = 0;                  // ranks; 0: an earlier version did not note it
  plan::BatchPlan batch;               // likewise
  std::vector<std::string> also_lost;  // nodes that were lost with the first cause's
  // Seconds from the last sign of life to the alarm, where the watch raised it.
  std::optional<double> detection_seconds;
  std::optional<int64_t> checkpoint_step;  // the newest that the attempt wrote
  std::vector<StragglerNote> stragglers;
  std::optional<std::string> strangers;  // who connected to the conductor without the attempt's key, in words
  std::optional<PreflightNote> preflight;  // where the nodes were looked at before it
};

// The compile job that went before a run.
struct PrecompileNote {
  std::string run;                // its run directory
  std::optional<double> seconds;  // its last attempt took
};

enum class RunStatus { kRunning, kCompleted, kFailed, kRefused, kPreempted };
const char* status_name(RunStatus status);

struct RunRecord {
  static constexpr int kFormatVersion = 1;
  std::string name, id, scheduler;
  RunStatus status = RunStatus::kRunning;
  std::optional<std::string> state;  // in `status --json` alone: what is seen of the run, e.g. "interrupted"
  std::string verdict;
  int exit_code = 0;
  int world_size = 0;
  std::vector<std::string> nodes;
  plan::BatchPlan batch;
  std::vector<Attempt> attempts;
  std::optional<TrainingMetrics> metrics;
  std::vector<std::optional<int64_t>> peak_memory_bytes;  // by global rank; empty: of none
  std::map<std::string, std::string> versions;
  std::optional<PrecompileNote> precompile;
  std::optional<Prediction> predicted;  // of the built-in trainer
};

// "step 0.3240 s (0.3010 to 0.3490), 12,640 tokens/s"; for a prediction that has a step.
std::string step_text(const Prediction& prediction);
// "cpu.calibration.toml and 3 earlier runs of this job"
std::string basis_text(const Prediction& prediction);

std::string to_json(const RunRecord& record);
std::string to_json(const std::vector<RunRecord>& records);
std::string to_json(const TrainingMetrics& metrics);
// With a newline.
std::string to_line(const RankExit& exit);
// kCorrupt with what is wrong; a newer format_version is kUnsupported.
Result<RunRecord> parse_run_record(std::string_view json);
// Reads a run's record.json. kNotFound, kIo; else as parse_run_record, with the file's path.
Result<RunRecord> read_record(const RunDir& run);
Result<RankExit> parse_rank_exit(std::string_view json);
Result<TrainingMetrics> parse_training_metrics(std::string_view json);

}  // namespace shardrun::record
